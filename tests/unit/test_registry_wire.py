"""What stands between: failures that pass, waiting, redirects, pages of HTML, broken answers."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Iterator

import pytest

from kiln.canonical import digest
from kiln.errors import JudgedBad, KilnError, Unavailable
from kiln.fetch.failures import Stopped
from kiln.fetch.http import Patience
from kiln.registry.failures import retry_after
from kiln.registry.http import HttpRegistry
from kiln.registry.names import Repository, parse_name
from kiln.registry.push import open_registry
from kiln.registry.wire import follow
from tests.helpers.fake_registry import FakeRegistry, Reply, Request, client, error
from tests.helpers.server import Answer, Server, closed_port

DATA = bytes(range(256)) * 3000
BLOB = digest(DATA)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        registry.put_blob("team/kiln", DATA)
        yield registry


def failure(fake: FakeRegistry) -> KilnError:
    with pytest.raises(KilnError) as caught:
        client(fake).read_manifest("v1")
    return caught.value


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(fake: FakeRegistry, status: int) -> None:
    fake.on("HEAD", "/blobs/", Reply(status), times=2)
    assert client(fake).has_blob(BLOB)
    assert fake.count("HEAD") == 3


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (0, "registry.unreachable"),
        (429, "registry.rate-limited"),
        (503, "registry.server-error"),
        (500, "registry.server-error"),
    ],
)
def test_what_does_not_pass_is_an_error_after_a_few(
    fake: FakeRegistry, status: int, code: str
) -> None:
    fake.on("GET", "/manifests/", Reply(status), times=None)
    found = failure(fake)
    assert (found.code, found.exit_code) == (code, 3)
    assert found.where == f"http://{fake.host}/v2/team/kiln/manifests/v1"
    assert found.fix
    assert fake.count("GET") == 3


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error(403, "DENIED"), "registry.denied"),
        (error(404, "MANIFEST_UNKNOWN"), "registry.not-found"),
        (error(405, "UNSUPPORTED"), "registry.unsupported"),
        (Reply(501), "registry.unsupported"),
        (error(400, "NAME_INVALID"), "registry.refused"),
        (Reply(204), "registry.refused"),
    ],
)
def test_what_stays_is_not_tried_again(fake: FakeRegistry, reply: Reply, code: str) -> None:
    fake.on("GET", "/manifests/", reply, times=None)
    assert failure(fake).code == code
    assert fake.count("GET") == 1


def test_retry_after_is_kept_to(fake: FakeRegistry) -> None:
    fake.on("HEAD", "/blobs/", Reply(429, {"Retry-After": "1"}))
    start = time.monotonic()
    assert client(fake).has_blob(BLOB)
    assert time.monotonic() - start >= 1


def test_a_wait_beyond_patience_is_told_and_not_cut_short(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", Reply(429, {"Retry-After": "21600"}), times=None)
    start = time.monotonic()
    found = failure(fake)
    assert time.monotonic() - start < 5
    assert found.code == "registry.rate-limited"
    assert "21600 s" in found.fix
    assert fake.count("GET") == 1


def test_both_forms_of_retry_after() -> None:
    assert retry_after("7") == 7
    later = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 50 < retry_after(later) <= 60
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    for nothing in ("", "soon", "-5", "٣"):
        assert retry_after(nothing) == 0


def test_a_page_of_html_is_said_to_be_one(fake: FakeRegistry) -> None:
    page = b"<html><head><title>Sign in\n to Example</title></head></html>"
    html = {"Content-Type": "text/html; charset=utf-8"}
    fake.on("GET", "/manifests/", Reply(502, html, page), times=3)
    found = failure(fake)
    assert found.code == "registry.server-error"
    assert "a page of HTML, so no registry: Sign in to Example" in found.why
    fake.on("GET", "/manifests/", Reply(200, html, page))
    assert failure(fake).code == "registry.not-a-registry"
    fake.on("HEAD", "/", Reply(200, html, page), times=2)
    for ask in (lambda: client(fake).has_blob(BLOB), lambda: client(fake).resolve("v1")):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert caught.value.code == "registry.not-a-registry"
    fake.on("GET", "/tags/", Reply(200, html, page))
    with pytest.raises(Unavailable) as caught:
        client(fake).tags()
    assert caught.value.code == "registry.not-a-registry"


def test_a_servers_words_are_short_and_printable(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", Reply(403, {}, b"\x1b[31mred\r\n\0" + b"x" * 100_000))
    assert "HTTP status 403 to GET: [31mred xxx" in failure(fake).why
    fake.on("GET", "/manifests/", Reply(403, {}, b"x" * 100_000))
    assert len(failure(fake).why) < 400


def test_answers_without_end_are_cut(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", Reply(200, {}, b"[" * ((4 << 20) + 1)))
    found = failure(fake)
    assert (found.code, found.exit_code) == ("registry.too-large", 1)


def test_a_body_that_is_cut_is_tried_again(fake: FakeRegistry) -> None:
    data = b'{"schemaVersion": 2}'
    fake.manifests["team/kiln", "v1"] = data, "application/vnd.oci.image.manifest.v1+json"
    fake.on("GET", "/manifests/", Reply(200, {}, data, cut=5))
    assert client(fake).read_manifest("v1").data == data
    assert fake.count("GET") == 2


def test_a_body_that_only_drips_is_not_waited_for() -> None:
    with Server() as slow:
        slow.on(f"/v2/kiln/blobs/{BLOB}", Answer(DATA, pause=0.05, piece=100))
        place = parse_name(f"{slow.host}/kiln").place
        assert isinstance(place, Repository)
        patience = Patience(attempts=2, delay=0.01, stall=0.3, slowest=100_000)
        with pytest.raises(Unavailable) as caught:
            list(HttpRegistry(place, patience=patience).read_blob(BLOB))
    assert caught.value.code == "registry.cut"
    assert "too slowly" in caught.value.why
    assert len(slow.seen) == 2


def test_another_encoding_is_refused(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", Reply(200, {"Content-Encoding": "gzip"}, b"x"))
    assert failure(fake).code == "registry.encoding"


def test_nobody_there() -> None:
    place = f"127.0.0.1:{closed_port()}/kiln"
    registry = open_registry(parse_name(place))
    registry.halt()
    with pytest.raises(Stopped):
        registry.tags()


def test_halt_ends_a_wait(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", Reply(503, {"Retry-After": "2"}), times=None)
    registry = client(fake, attempts=50)
    timer = threading.Timer(0.5, registry.halt)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        registry.read_manifest("v1")
    assert time.monotonic() - start < 1.9
    timer.join()


def test_halt_ends_a_silent_answer(fake: FakeRegistry) -> None:
    silent = threading.Event()
    fake.on("GET", "/manifests/", lambda _: Reply(200) if silent.wait(20) else None)
    registry = client(fake)
    timer = threading.Timer(0.5, registry.halt)
    timer.start()
    with pytest.raises(Stopped):
        registry.read_manifest("v1")
    silent.set()
    timer.join()


# ---- redirects -------------------------------------------------------------------------


def test_a_blob_may_be_elsewhere_and_no_credentials_go_there() -> None:
    with FakeRegistry("basic") as fake, FakeRegistry() as store:
        store.put_blob("bucket/x", DATA)
        target = f"http://{store.host}/v2/bucket/x/blobs/{BLOB}?X-Signature=s3cret"
        fake.on("GET", "/blobs/", lambda r: Reply(307, {"Location": target}) if r.authorization
                else None, times=None)  # fmt: skip
        assert b"".join(client(fake).read_blob(BLOB)) == DATA
        assert [s.authorization for s in store.seen] == [""]
        assert any(s.authorization for s in fake.seen)


@pytest.mark.parametrize("theirs", ["basic", "bearer"])
def test_a_401_of_another_host_is_no_challenge_for_us(theirs: str) -> None:
    """Its token server, which it names itself, would get the password of the registry."""
    with FakeRegistry("basic") as fake, FakeRegistry(theirs) as store:
        target = f"http://{store.host}/v2/bucket/x/blobs/{BLOB}"

        def elsewhere(request: Request) -> Reply | None:
            return Reply(307, {"Location": target}) if request.authorization else None

        fake.on("GET", "/blobs/", elsewhere, times=None)
        registry = client(fake)
        assert not registry.has_blob(BLOB)  # from here on it is known what the registry wants
        with pytest.raises(Unavailable) as caught:
            b"".join(registry.read_blob(BLOB))
        assert caught.value.code == "registry.unauthorized"
        assert [(s.path, s.authorization) for s in store.seen] == [
            (f"/v2/bucket/x/blobs/{BLOB}", "")
        ]


def test_a_signed_address_is_not_shown(fake: FakeRegistry) -> None:
    with FakeRegistry() as store:
        target = f"http://u:s3cret@{store.host}/gone?X-Signature=s3cret"
        fake.on("GET", "/blobs/", Reply(302, {"Location": target}))
        with pytest.raises(Unavailable) as caught:
            b"".join(client(fake).read_blob(BLOB))
        assert caught.value.code == "registry.not-found"
        assert "s3cret" not in str(caught.value)
        assert store.host in str(caught.value)
        assert not store.seen[0].authorization


def test_a_circle_of_redirects(fake: FakeRegistry) -> None:
    fake.on("GET", "/manifests/", lambda r: Reply(302, {"Location": r.path}), times=None)
    assert failure(fake).code == "registry.redirect"
    assert fake.count("GET") == 11


@pytest.mark.parametrize("target", ["ftp://a/b", "file:///etc/passwd", "http://[", "http://a b/"])
def test_a_redirect_to_nowhere(fake: FakeRegistry, target: str) -> None:
    fake.on("GET", "/manifests/", Reply(302, {"Location": target}), times=None)
    assert failure(fake).code == "registry.redirect"
    assert fake.count("GET") == 1


def test_a_redirect_that_would_change_the_method(fake: FakeRegistry) -> None:
    fake.on("DELETE", "/manifests/", Reply(302, {"Location": "/v2/"}), times=None)
    with pytest.raises(Unavailable) as caught:
        client(fake).delete("v1")
    assert caught.value.code == "registry.redirect"


def test_locations() -> None:
    https = "https://registry.example/v2/a/blobs/uploads/"
    assert follow(https, "/v2/x?_state=1#f") == "https://registry.example/v2/x?_state=1"
    assert follow(https, "u1?a=b") == https + "u1?a=b"
    assert follow(https, "https://other.example/x") == "https://other.example/x"
    assert follow(https, "https://u:p@other.example/x") == "https://other.example/x"
    # A registry behind a proxy that ends TLS.
    plain = "http://registry.example/v2/x"
    assert follow(https, plain, upgrade=True) == "https://registry.example/v2/x"
    with pytest.raises(Unavailable):
        follow(https, plain)
    with pytest.raises(Unavailable):
        follow(https, "http://other.example/v2/x", upgrade=True)


def test_what_is_there_is_not_what_it_was(fake: FakeRegistry) -> None:
    fake.on("HEAD", "/blobs/", lambda r: Reply(200, {"Docker-Content-Digest": "sha256:" + "0" * 64},
                                               DATA))  # fmt: skip
    with pytest.raises(JudgedBad) as caught:
        client(fake).has_blob(BLOB)
    assert caught.value.code == "registry.digest-mismatch"


def test_an_accept_of_all_manifests_is_sent(fake: FakeRegistry) -> None:
    seen: list[Request] = []
    fake.on("GET", "/manifests/", lambda r: seen.append(r))
    assert failure(fake).code == "registry.not-found"
    kinds = seen[0].headers["accept"].split(", ")
    assert "application/vnd.oci.image.index.v1+json" in kinds
    assert "application/vnd.docker.distribution.manifest.list.v2+json" in kinds
    assert len(kinds) == 4
