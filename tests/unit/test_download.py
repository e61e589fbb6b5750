"""Downloads against a server that misbehaves in every way that servers do."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.canonical import Digest, digest
from kiln.errors import CannotHere, KilnError, Unavailable
from kiln.fetch.download import Downloader
from kiln.fetch.failures import Stopped
from kiln.fetch.http import Access, Http, Patience
from kiln.fetch.partial import hold
from kiln.store import Store
from tests.helpers.server import Answer, NotedTask, Notes, Seen, Server, closed_port, file

BODY = bytes(range(256)) * 4096  # 1 MiB
WHAT = digest(BODY)
QUICK = Patience(attempts=3, delay=0.01, longest=0.05, stall=0.3, slowest=1000)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def _plain_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


class Rig:
    """A downloader with what a test looks at."""

    def __init__(self, store: Store, access: Access | None = None) -> None:
        self.store, self.notes, self.task = store, Notes(), NotedTask()
        self.http = Http(access or Access(connect=2, read=0.5), QUICK)
        self.downloader = Downloader(store, self.http, self.notes)

    def get(self, *urls: str, what: Digest = WHAT, asked: tuple[Unavailable, ...] = ()) -> None:
        self.downloader.fetch(what, "thing.whl", urls, self.task, asked)

    def fails(self, *urls: str, what: Digest = WHAT) -> Unavailable:
        with pytest.raises(Unavailable) as caught:
            self.get(*urls, what=what)
        assert not self.store.blobs.has(what)
        return caught.value

    @property
    def partial(self) -> Path:
        return self.store.partial / WHAT.sha256


@pytest.fixture
def rig(store: Store) -> Rig:
    return Rig(store)


def test_a_file_comes_whole_and_leaves_nothing_behind(rig: Rig, server: Server) -> None:
    rig.get(server.on("/f", file(BODY)))
    assert rig.store.blobs.read(WHAT.sha256) == BODY
    assert list(rig.store.partial.iterdir()) == []
    assert sum(rig.task.done) == len(BODY)
    assert rig.store.blobs.path(WHAT.sha256).stat().st_mode & 0o777 == 0o444
    assert server.seen[0].headers["Accept-Encoding"] == "identity"
    assert rig.notes.lines == []


def test_an_empty_file_can_be_fetched(rig: Rig, server: Server) -> None:
    rig.get(server.on("/f", Answer(b"")), what=digest(b""))
    assert rig.store.blobs.has(digest(b""))


def test_what_the_store_has_is_not_asked_for(rig: Rig, server: Server) -> None:
    rig.store.blobs.put(BODY)
    rig.get(server.on("/f", file(BODY)))
    assert server.seen == []


def test_without_content_length(rig: Rig, server: Server) -> None:
    rig.get(server.on("/f", Answer(BODY, length=None)))
    assert rig.store.blobs.has(WHAT)


def test_a_cut_body_is_resumed_with_if_range(rig: Rig, server: Server) -> None:
    headers = {"ETag": '"v1"'}
    rig.get(server.on("/f", Answer(BODY, headers=headers, cut=300_000), file(BODY)))
    assert rig.store.blobs.has(WHAT)
    assert server.seen[1].headers["If-Range"] == '"v1"'
    start = int(server.seen[1].headers["Range"].removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= 300_000
    assert sum(rig.task.done) == len(BODY)


def test_last_modified_serves_where_the_etag_is_weak(rig: Rig, server: Server) -> None:
    day = "Mon, 02 Mar 2026 10:00:00 GMT"
    headers = {"ETag": 'W/"v1"', "Last-Modified": day}
    rig.get(server.on("/f", Answer(BODY, headers=headers, cut=300_000), Answer(BODY)))
    assert server.seen[1].headers["If-Range"] == day


def test_a_later_run_goes_on_where_the_last_ended(store: Store, server: Server) -> None:
    first = Rig(store)
    url = server.on("/f", Answer(BODY, headers={"ETag": '"v1"'}, cut=300_000), Answer(status=503))
    assert first.fails(url).code == "fetch.server-error"
    assert 0 < first.partial.stat().st_size <= 300_000
    asked = len(server.seen)
    second = Rig(store)
    server.on("/f", file(BODY))
    second.get(url)
    assert store.blobs.has(WHAT)
    assert "Range" in server.seen[asked].headers
    assert sum(second.task.done) == len(BODY)


def test_a_changed_file_is_not_spliced(rig: Rig, server: Server) -> None:
    """If-Range makes the server send the new file whole."""
    old = Answer(b"x" * len(BODY), headers={"ETag": '"old"'}, cut=300_000)
    rig.get(server.on("/f", old, file(BODY, '"new"')))
    assert rig.store.blobs.has(WHAT)
    assert any("cannot be resumed" in line for line in rig.notes.lines)


def test_a_splice_of_two_files_starts_anew_once(rig: Rig, server: Server) -> None:
    def careless(seen: Seen) -> Answer:
        return file(BODY)(
            Seen("GET", "/f", {k: v for k, v in seen.headers.items() if k != "If-Range"})
        )

    rig.get(server.on("/f", Answer(b"x" * len(BODY), cut=300_000), careless, careless))
    assert rig.store.blobs.has(WHAT)
    assert any("wrong sha256 after resuming" in line for line in rig.notes.lines)


def test_a_server_that_ignores_range(rig: Rig, server: Server) -> None:
    rig.get(server.on("/f", Answer(BODY, cut=300_000), Answer(BODY)))
    assert "Range" in server.seen[1].headers
    assert rig.store.blobs.has(WHAT)
    assert sum(rig.task.done) == len(BODY)


@pytest.mark.parametrize("said", ["bytes 0-9/10", "bytes 5-1048575/1048576", "items 1-2/3", ""])
def test_a_wrong_content_range_is_never_used(rig: Rig, server: Server, said: str) -> None:
    rig.partial.write_bytes(BODY[:1000])
    wrong = Answer(BODY[1000:], 206, {"Content-Range": said} if said else {})
    rig.get(server.on("/f", wrong, file(BODY)))
    assert "Range" not in server.seen[1].headers
    assert rig.store.blobs.has(WHAT)


def test_206_that_nobody_asked_for(rig: Rig, server: Server) -> None:
    said = {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}
    assert rig.fails(server.on("/f", Answer(BODY, 206, said))).code == "fetch.wrong-range"


def test_416_starts_anew(rig: Rig, server: Server) -> None:
    rig.partial.write_bytes(BODY[:1000])
    rig.get(server.on("/f", Answer(status=416), file(BODY)))
    assert rig.store.blobs.has(WHAT)


def test_a_partial_that_is_whole_needs_no_request(rig: Rig, server: Server) -> None:
    rig.partial.write_bytes(BODY)
    rig.get(server.on("/f", file(BODY)))
    assert server.seen == []
    assert rig.store.blobs.has(WHAT)


def test_a_partial_that_is_too_long_is_dropped(rig: Rig, server: Server) -> None:
    rig.partial.write_bytes(BODY + b"x")
    rig.get(server.on("/f", file(BODY)))
    assert "Range" not in server.seen[0].headers


def test_a_body_that_is_always_cut_ends(rig: Rig, server: Server) -> None:
    error = rig.fails(server.on("/f", Answer(BODY, cut=0)))
    assert error.code == "fetch.cut"
    assert len(server.seen) == QUICK.attempts


def test_a_wrong_hash_never_lands(rig: Rig, server: Server) -> None:
    bad = b"y" * len(BODY)
    error = rig.fails(server.on("/f", Answer(bad)))
    assert error.code == "fetch.hash-mismatch"
    assert error.where == server.url("/f")
    assert WHAT.sha256 in error.why
    assert digest(bad).sha256 in error.why
    assert list(rig.store.partial.iterdir()) == []
    assert len(server.seen) == 1


def test_after_a_wrong_hash_the_next_place_is_asked(rig: Rig, server: Server) -> None:
    rig.get(server.on("/bad", Answer(b"y" * len(BODY))), server.on("/good", file(BODY)))
    assert rig.store.blobs.has(WHAT)
    assert [line for line in rig.notes.lines if "/bad" in line and "passed over" in line]


@pytest.mark.parametrize("length", [-1, None])
def test_a_body_longer_than_locked_stops_at_once(
    rig: Rig, server: Server, length: int | None
) -> None:
    endless = Answer(BODY * 20, length=length, pause=0.001)
    error = rig.fails(server.on("/f", endless))
    assert error.code == "fetch.wrong-size"
    assert sum(rig.task.done) == 0
    assert len(server.seen) == 1


def test_a_shorter_file_is_another_file(rig: Rig, server: Server) -> None:
    assert rig.fails(server.on("/f", Answer(BODY[:-1]))).code == "fetch.wrong-size"
    assert len(server.seen) == 1


def test_404_goes_to_the_next_place_and_is_not_retried(rig: Rig, server: Server) -> None:
    rig.get(server.url("/none"), server.on("/f", file(BODY)))
    assert server.paths() == ["/none", "/f"]


def test_not_found_lists_every_place(rig: Rig, server: Server, tmp_path: Path) -> None:
    urls = [server.url("/a"), server.on("/b", Answer(status=410)), (tmp_path / "c").as_uri()]
    with pytest.raises(Unavailable) as caught:
        rig.get(*urls, asked=(Unavailable("fetch.not-found", "no", where="https://index.invalid"),))
    error = caught.value
    assert error.code == "fetch.not-found"
    assert all(url in error.why for url in urls)
    assert "index.invalid" in error.why
    assert not rig.partial.exists()


def test_no_place_at_all(rig: Rig) -> None:
    assert rig.fails().code == "fetch.not-found"


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_failing_server_is_asked_again(rig: Rig, server: Server, status: int) -> None:
    rig.get(server.on("/f", Answer(status=status), Answer(status=status), file(BODY)))
    assert rig.store.blobs.has(WHAT)


def test_a_server_that_keeps_failing(rig: Rig, server: Server) -> None:
    error = rig.fails(server.on("/f", Answer(status=503, headers={"Retry-After": "3600"})))
    assert error.code == "fetch.server-error"
    assert len(server.seen) == QUICK.attempts


def test_a_refusal_is_not_retried(rig: Rig, server: Server) -> None:
    assert rig.fails(server.on("/f", Answer(status=403))).code == "fetch.refused"
    assert len(server.seen) == 1


def test_a_host_that_is_down_costs_its_wait_once(rig: Rig) -> None:
    url = f"http://127.0.0.1:{closed_port()}/f"
    assert rig.fails(url).code == "fetch.unreachable"
    assert "refused" in rig.fails(url + "2").why or "before" in rig.fails(url + "2").why


def test_an_unknown_host(rig: Rig) -> None:
    assert rig.fails("http://nowhere.invalid/f").code == "fetch.unreachable"


def test_a_hanging_server_ends_by_the_read_timeout(rig: Rig, server: Server) -> None:
    start = time.monotonic()
    error = rig.fails(server.on("/f", Answer(BODY, pause=5)))
    assert error.code == "fetch.cut"
    assert time.monotonic() - start < 5


def test_a_trickling_server_ends_by_the_stall_rule(rig: Rig, server: Server) -> None:
    start = time.monotonic()
    error = rig.fails(server.on("/f", Answer(BODY, pause=0.1, piece=1)))
    assert error.code == "fetch.cut"
    assert "bytes in" in error.why
    assert time.monotonic() - start < 5


def test_redirects_are_followed(rig: Rig, server: Server) -> None:
    server.on("/f", file(BODY))
    rig.get(server.on("/a", Answer(status=302, headers={"Location": "f"})))
    assert rig.store.blobs.has(WHAT)


@pytest.mark.parametrize("target", ["/a", "ftp://x/f", "file:///etc/hostname", "http://[", "//"])
def test_bad_redirects_are_refused(rig: Rig, server: Server, target: str) -> None:
    error = rig.fails(server.on("/a", Answer(status=302, headers={"Location": target})))
    assert error.code == "fetch.redirect"


def test_a_downgrade_is_refused() -> None:
    from kiln.fetch.http import _redirect

    with pytest.raises(Unavailable) as caught:
        _redirect("https://x.invalid/a", "http://x.invalid/a")
    assert caught.value.code == "fetch.redirect"
    assert _redirect("http://x.invalid/a", "https://x.invalid/b") == "https://x.invalid/b"


def test_an_encoded_body_is_refused(rig: Rig, server: Server) -> None:
    encoded = Answer(BODY, headers={"Content-Encoding": "gzip"})
    assert rig.fails(server.on("/f", encoded)).code == "fetch.encoding"


def test_a_local_file_is_copied(rig: Rig, tmp_path: Path) -> None:
    source = tmp_path / "a b+c.whl"
    source.write_bytes(BODY)
    rig.get(source.as_uri())
    assert rig.store.blobs.read(WHAT.sha256) == BODY
    assert not source.samefile(rig.store.blobs.path(WHAT.sha256))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"z" * len(BODY), "fetch.hash-mismatch"),
        (b"short", "fetch.wrong-size"),
        (BODY + b"!", "fetch.wrong-size"),
    ],
)
def test_a_wrong_local_file(rig: Rig, tmp_path: Path, content: bytes, code: str) -> None:
    source = tmp_path / "f"
    source.write_bytes(content)
    assert rig.fails(source.as_uri()).code == code


def test_a_local_device_or_folder_is_no_file(rig: Rig, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        assert rig.fails(path.as_uri()).code == "fetch.not-found"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_keeps_what_came(
    rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real, room = os.pwrite, [200_000]

    def full(fd: int, data: bytes, offset: int) -> int:
        if room[0] <= 0:
            raise OSError(code, "full")
        count = real(fd, data[: room[0]], offset)
        room[0] -= count
        return count

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CannotHere) as caught:
        rig.get(server.on("/f", file(BODY)))
    assert caught.value.code == "store.no-space"
    assert rig.partial.stat().st_size == 200_000
    room[0] = 1 << 30
    rig.get(server.url("/f"))
    assert server.seen[-1].headers["Range"] == "bytes=200000-"
    assert rig.store.blobs.has(WHAT)


def test_stop_keeps_the_partial_file(rig: Rig, server: Server) -> None:
    url = server.on("/f", file(BODY, pause=0.02, piece=8192))
    timer = threading.Timer(0.3, rig.http.halt)
    timer.start()
    with pytest.raises(Stopped):
        rig.get(url)
    size = rig.partial.stat().st_size
    assert 0 < size < len(BODY)
    assert rig.partial.read_bytes() == BODY[:size]
    server.on("/f", file(BODY))
    Rig(rig.store).get(url)
    assert server.seen[-1].headers["Range"] == f"bytes={size}-"


def test_halt_wakes_a_reader_of_a_silent_server(store: Store, server: Server) -> None:
    rig = Rig(store, Access(connect=2, read=30))
    url = server.on("/f", file(BODY, pause=20, piece=1 << 19))
    timer = threading.Timer(0.3, rig.http.halt)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        rig.get(url)
    assert time.monotonic() - start < 5


def test_halt_wakes_who_waits_for_an_answer(store: Store, server: Server) -> None:
    rig = Rig(store, Access(connect=2, read=30))
    done = threading.Event()

    def silent(seen: Seen) -> Answer:
        done.wait(20)
        return Answer()

    timer = threading.Timer(0.3, rig.http.halt)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        rig.get(server.on("/f", silent))
    assert time.monotonic() - start < 5
    done.set()


def test_a_file_of_another_size_does_not_cost_what_came(rig: Rig, server: Server) -> None:
    rig.partial.write_bytes(BODY[:1000])
    rig.get(server.on("/bad", Answer(b"maintenance")), server.on("/good", file(BODY)))
    assert server.seen[1].headers["Range"] == "bytes=1000-"


def test_two_at_once_fetch_once(store: Store, server: Server) -> None:
    url = server.on("/f", file(BODY, pause=0.02))
    rigs = [Rig(store) for _ in range(4)]
    threads = [threading.Thread(target=rig.get, args=(url,)) for rig in rigs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.blobs.has(WHAT)
    assert len(server.seen) == 1
    assert all(sum(rig.task.done) == len(BODY) for rig in rigs)
    assert sum(any("waiting" in line for line in rig.notes.lines) for rig in rigs) == 3


def test_who_waits_can_be_stopped(rig: Rig) -> None:
    with hold(rig.store, WHAT, "f", rig.notes, threading.Event()):
        rig.http.halt()
        with pytest.raises(Stopped):
            rig.get("http://unused.invalid/")


def test_credentials_are_sent_and_never_shown(rig: Rig, server: Server) -> None:
    server.on("/f", Answer(status=403))
    url = f"http://user:s3cret@{server.host}/f?X-Signature=s3cret"
    error = rig.fails(url)
    assert server.seen[0].headers["Authorization"].startswith("Basic ")
    assert "s3cret" not in str(error)
    assert "s3cret" not in repr(rig.http.access)


def test_credentials_do_not_follow_to_another_host(rig: Rig, server: Server) -> None:
    with Server() as other:
        other.on("/f", file(BODY))
        server.on("/a", Answer(status=302, headers={"Location": other.url("/f")}))
        rig.get(f"http://user:s3cret@{server.host}/a")
        assert "Authorization" in server.seen[0].headers
        assert "Authorization" not in other.seen[0].headers


def test_netrc_is_used(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    Rig(store).get(server.on("/f", file(BODY)))
    assert server.seen[0].headers["Authorization"] == "Basic bWU6czNjcmV0"


def test_a_bad_netrc_does_not_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine x login me pass s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with pytest.raises(KilnError) as caught:
        Http(Access())
    assert caught.value.code == "fetch.bad-netrc"
    assert "s3cret" not in str(caught.value)


def test_the_proxy_of_the_environment_is_used(
    rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("http://elsewhere.invalid/f", file(BODY))
    monkeypatch.setenv("http_proxy", f"http://{server.host}")
    monkeypatch.setenv("no_proxy", "direct.invalid")
    rig.get("http://elsewhere.invalid/f")
    assert server.paths() == ["http://elsewhere.invalid/f"]
    assert rig.fails("http://direct.invalid/f", what=digest(b"x")).code == "fetch.unreachable"


def test_a_missing_ca_bundle_is_named(store: Store, tmp_path: Path) -> None:
    rig = Rig(store, Access(ca=str(tmp_path / "none.pem")))
    with pytest.raises(KilnError) as caught:
        rig.get("https://x.invalid/f")
    assert caught.value.code == "fetch.bad-ca"


@pytest.mark.parametrize(
    "url", ["ftp://x/f", "file://host/f", "x", "http://", "http://a b/", "http://h:p/"]
)
def test_urls_that_are_none(rig: Rig, url: str) -> None:
    with pytest.raises(KilnError) as caught:
        rig.get(url)
    assert caught.value.code == "fetch.bad-url"
