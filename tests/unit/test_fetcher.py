"""Fetching the files of a lock: together, all failures at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln.canonical import Digest, digest
from kiln.errors import BadInput, CannotHere, Problems, Unavailable
from kiln.fetch import fetcher as module
from kiln.fetch.failures import Stopped
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.http import Access, Http, Patience
from kiln.fetch.settings import Place, Settings
from kiln.graph.action import Locked
from kiln.lock.model import Deb, Suite, Wheel
from kiln.store import Store
from tests.helpers.server import Answer, Notes, Server, file


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    with Server() as running:
        yield running


class Rig:
    def __init__(
        self, store: Store, server: Server, links: Path | None = None, jobs: int = 4
    ) -> None:
        self.store, self.server, self.notes = store, server, Notes()
        self.settings = Settings(
            Place(server.url("/simple"), "test"),
            find_links=(Place(links.as_uri(), "test"),) if links else (),
        )
        self.http = Http(Access(connect=1, read=2), Patience(attempts=2, delay=0.01))
        self.fetcher = StoreFetcher(
            store, self.settings, self.notes,
            named={"other": server.url("/other")},
            suites={"bookworm": Suite("20260101T000000Z", "c" * 64)},
            http=self.http, jobs=jobs,
        )  # fmt: skip

    def wheel(self, name: str, body: bytes, served: bytes | None = None) -> Locked:
        """A locked wheel that the index serves (`served`: other bytes than locked)."""
        wheel = f"{name}-1.0-py3-none-any.whl"
        answer = file(body if served is None else served)
        self.server.on(f"/f/{wheel}", answer)
        href = f'<a href="/f/{wheel}">x</a>'.encode()
        self.server.on(f"/simple/{name}/", Answer(href, headers={"Content-Type": "text/html"}))
        return locked(name, body)


def locked(name: str, body: bytes, index: str = "default") -> Locked:
    what, wheel = digest(body), f"{name}-1.0-py3-none-any.whl"
    return Locked(what, wheel, Wheel(name, "1.0", wheel, what.size, what.sha256, index))


@pytest.fixture
def rig(store: Store, server: Server) -> Rig:
    return Rig(store, server)


def test_many_files_in_one_task(rig: Rig) -> None:
    bodies = {f"p{i}": bytes([i]) * (i * 1000 + 1) for i in range(12)}
    rig.fetcher.fetch([rig.wheel(name, body) for name, body in bodies.items()])
    assert all(rig.store.blobs.read(digest(b).sha256) == b for b in bodies.values())
    total = sum(map(len, bodies.values()))
    assert [(name, size, sum(done)) for name, size, done in rig.notes.tasks] == [
        ("fetch 12 files", total, total)
    ]


def test_the_largest_first(store: Store, server: Server) -> None:
    rig = Rig(store, server, jobs=1)
    rig.fetcher.fetch(
        [rig.wheel("small", b"s"), rig.wheel("large", b"l" * 99), rig.wheel("mid", b"m" * 9)]
    )
    names = [p.split("/")[2].split("-")[0] for p in server.paths() if p.startswith("/f/")]
    assert names == ["large", "mid", "small"]


def test_what_is_there_is_not_asked_for(rig: Rig) -> None:
    wanted = rig.wheel("here", b"here")
    rig.store.blobs.put(b"here")
    rig.fetcher.fetch([wanted])
    assert rig.server.seen == []
    assert rig.notes.tasks == []


def test_an_alternate_is_enough(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "shared").blobs.put(b"shared")
    monkeypatch.setenv("KILN_ALTERNATES", str(tmp_path / "shared"))
    rig = Rig(Store(tmp_path / "own"), server)
    rig.fetcher.fetch([rig.wheel("shared", b"shared")])
    assert server.seen == []


def test_one_file_wanted_twice_comes_once(rig: Rig) -> None:
    wanted = rig.wheel("twice", b"twice")
    rig.fetcher.fetch([wanted, wanted])
    assert sum(path.startswith("/f/") for path in rig.server.paths()) == 1


def test_all_failures_at_once_and_the_rest_is_kept(rig: Rig) -> None:
    good = rig.wheel("good", b"good")
    bad = rig.wheel("bad", b"right", served=b"wrong")
    gone = locked("gone", b"gone")
    with pytest.raises(Problems) as caught:
        rig.fetcher.fetch([gone, bad, good])
    assert [e.code for e in caught.value.errors] == ["fetch.hash-mismatch", "fetch.not-found"]
    assert "has no gone-1.0" in caught.value.errors[1].why
    assert rig.store.blobs.has(good.digest)
    assert not rig.store.blobs.has(bad.digest)
    assert not rig.store.blobs.has(digest(b"wrong"))


def test_an_index_that_is_down_is_not_called_a_missing_file(rig: Rig) -> None:
    rig.server.on("/simple/x/", Answer(status=503))
    with pytest.raises(Unavailable) as caught:
        rig.fetcher.fetch([locked("x", b"x")])
    assert caught.value.code == "fetch.server-error"
    assert "503" in caught.value.why


def test_find_links_first_and_copied(store: Store, server: Server, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    source = wheels / "near-1.0-py3-none-any.whl"
    source.write_bytes(b"near")
    Rig(store, server, wheels).fetcher.fetch([locked("near", b"near")])
    assert server.seen == []
    source.write_bytes(b"changed later")
    assert store.blobs.read(digest(b"near").sha256) == b"near"


def test_a_stale_file_in_find_links_is_passed_over_with_a_note(
    store: Store, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "near-1.0-py3-none-any.whl").write_bytes(b"XXXX")
    rig = Rig(store, server, tmp_path)
    rig.fetcher.fetch([rig.wheel("near", b"near")])
    assert store.blobs.has(digest(b"near"))
    assert any("passed over" in line and str(tmp_path) in line for line in rig.notes.lines)


def test_the_named_index_goes_before_the_default_one(rig: Rig) -> None:
    rig.wheel("both", b"both")
    rig.fetcher.fetch([locked("both", b"both", "other")])
    assert rig.server.paths()[:2] == ["/other/both/", "/simple/both/"]


def test_an_unknown_index_is_an_error(rig: Rig) -> None:
    with pytest.raises(BadInput) as caught:
        rig.fetcher.fetch([locked("x", b"x", "unheard-of")])
    assert caught.value.code == "fetch.unknown-index"


def test_debian_packages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_DEBIAN_MIRROR", rig.server.url("/debian"))
    rig.server.on("/debian/pool/main/b/bash/bash_1%2Bb1_amd64.deb", file(b"deb"))
    rig.server.on("/debian/pool/main/b/bash/bash_1+b1_amd64.deb", file(b"deb"))
    what = digest(b"deb")
    deb = Deb(
        "bash", "1+b1", "amd64", "pool/main/b/bash/bash_1+b1_amd64.deb", what.size, what.sha256,
        "base", "bookworm",
    )  # fmt: skip
    rig.fetcher.fetch([Locked(what, "bash", deb)])
    assert rig.store.blobs.has(what)


def test_a_suite_that_the_lock_lacks(rig: Rig) -> None:
    what = digest(b"deb")
    deb = Deb("bash", "1", "amd64", "pool/b.deb", what.size, what.sha256, "base", "trixie")
    with pytest.raises(BadInput) as caught:
        rig.fetcher.fetch([Locked(what, "bash", deb)])
    assert caught.value.code == "fetch.unknown-suite"


def test_too_little_space_is_said_before(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=10))
    with pytest.raises(CannotHere) as caught:
        rig.fetcher.fetch([rig.wheel("big", b"b" * 100)])
    assert caught.value.code == "store.no-space"
    assert rig.server.seen == []


def test_a_full_disk_ends_it_early(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(store, server, jobs=1)
    wanted = [rig.wheel(f"p{i}", bytes([i]) * 100) for i in range(9)]

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CannotHere) as caught:
        rig.fetcher.fetch(wanted)
    assert caught.value.code == "store.no-space"
    assert len(server.seen) < 9


def test_ctrl_c_stops_all_and_a_later_run_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"c" * (1 << 20)
    wanted = rig.wheel("slow", body)
    rig.server.on("/f/slow-1.0-py3-none-any.whl", file(body, pause=0.02, piece=8192))

    def interrupted(*args: object, **more: object) -> object:
        while not (part := rig.store.partial / wanted.digest.sha256).exists() or (
            part.stat().st_size == 0
        ):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.fetcher.fetch([wanted])
    monkeypatch.undo()
    had = (rig.store.partial / wanted.digest.sha256).stat().st_size
    assert 0 < had < len(body)
    with pytest.raises(Stopped):  # this one has been told to stop, and says so
        rig.fetcher.fetch([wanted])
    rig.server.on("/f/slow-1.0-py3-none-any.whl", file(body))
    Rig(rig.store, rig.server).fetcher.fetch([wanted])
    assert rig.server.seen[-1].headers["Range"] == f"bytes={had}-"
    assert rig.store.blobs.has(wanted.digest)


def test_credentials_never_show(store: Store, server: Server) -> None:
    rig = Rig(store, server)
    settings = Settings(
        Place(server.url("/simple"), "test"),
        access=Access(credentials={f"http://{server.host}": ("me", "s3cret")}),
    )
    server.on("/simple/x/", Answer(status=403))
    fetcher = StoreFetcher(store, settings, rig.notes)
    with pytest.raises(Unavailable) as caught:
        fetcher.fetch([locked("x", b"x")])
    assert "Authorization" in server.seen[0].headers
    assert "s3cret" not in str(caught.value)


def test_a_source_of_no_known_kind_is_a_bug(rig: Rig) -> None:
    with pytest.raises(TypeError):
        rig.fetcher.fetch([Locked(Digest("d" * 64, 1), "x", object())])
