"""Sending blobs: whole and in chunks, mounts, broken connections, lost uploads, odd registries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiln.canonical import digest
from kiln.errors import Damaged, JudgedBad, KilnError, Unavailable
from kiln.fetch.failures import Stopped
from kiln.registry.http import HttpRegistry
from tests.helpers.fake_registry import FakeRegistry, Reply, Request, client, error, source

SMALL = b"small " * 100
CHUNK = 300_000
LARGE = bytes(range(256)) * 4_000  # 1,024,000 bytes: three chunks and a part of one


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


class Told:
    """A progress that remembers; `count` must end at what the registry got."""

    def __init__(self) -> None:
        self.count = 0
        self.highest = 0

    def __call__(self, amount: int) -> None:
        self.count += amount
        self.highest = max(self.highest, self.count)


def send(registry: HttpRegistry, data: bytes) -> Told:
    told = Told()
    registry.write_blob(digest(data), source(data), told)
    assert told.count == told.highest == len(data)
    return told


def arrived(fake: FakeRegistry, data: bytes, repository: str = "team/kiln") -> bool:
    return fake.blobs.get((repository, str(digest(data)))) == data


def code(registry: HttpRegistry, data: bytes) -> str:
    told = Told()
    with pytest.raises(KilnError) as caught:
        registry.write_blob(digest(data), source(data), told)
    assert told.count == 0, "what did not arrive is not counted"
    return caught.value.code


def test_a_small_blob_goes_whole(fake: FakeRegistry) -> None:
    send(client(fake), SMALL)
    assert arrived(fake, SMALL)
    assert [s.method for s in fake.seen] == ["POST", "PUT", "HEAD"]
    put = fake.seen[1]
    assert put.query["_state"], "the query of the Location is kept"
    assert put.query["digest"] == [str(digest(SMALL))]
    assert put.headers["content-length"] == str(len(SMALL))


def test_an_empty_blob(fake: FakeRegistry) -> None:
    send(client(fake), b"")
    assert arrived(fake, b"")


def test_a_large_blob_goes_in_chunks(fake: FakeRegistry) -> None:
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)
    ranges = [s.headers["content-range"] for s in fake.seen if s.method == "PATCH"]
    assert ranges == ["0-299999", "300000-599999", "600000-899999", "900000-1023999"]


def test_the_registrys_least_chunk_is_kept_to(fake: FakeRegistry) -> None:
    def least(request: Request) -> Reply:
        fake.uploads["u"] = bytearray()
        headers = {"Location": "/v2/team/kiln/blobs/uploads/u", "OCI-Chunk-Min-Length": "500000"}
        return Reply(202, headers)

    fake.on("POST", "/uploads/", least)
    send(client(fake, chunk=CHUNK), LARGE)
    assert fake.count("PATCH") == 3


@pytest.mark.parametrize("form", ["http://{host}/v2/{rest}", "/v2/{rest}", "../uploads/{tail}"])
def test_locations_of_every_form(fake: FakeRegistry, form: str) -> None:
    def begin(request: Request) -> Reply:
        fake.uploads["u7"] = bytearray()
        rest = "team/kiln/blobs/uploads/u7?_state=a%2Fb%3D&x="
        where = form.format(host=fake.host, rest=rest, tail="u7?_state=a%2Fb%3D&x=")
        return Reply(202, {"Location": where})

    fake.on("POST", "/uploads/", begin)
    send(client(fake), SMALL)
    assert arrived(fake, SMALL)
    assert fake.seen[1].query["_state"] == ["a/b="]
    assert fake.seen[1].query["x"] == [""]


def test_an_upload_at_another_host_gets_no_credentials() -> None:
    with FakeRegistry("basic") as fake, FakeRegistry() as store:
        store.uploads["u"] = bytearray()
        where = f"http://{store.host}/v2/bucket/blobs/uploads/u?X-Signature=s3cret"
        fake.on("POST", "/uploads/", lambda r: Reply(202, {"Location": where}) if r.authorization
                else None, times=None)  # fmt: skip
        fake.put_blob("team/kiln", SMALL)  # what its own storage would tell it
        client(fake).write_blob(digest(SMALL), source(SMALL), lambda _: None)
        assert arrived(store, SMALL, "bucket")
        assert not any(s.authorization for s in store.seen)


def test_an_upload_that_leads_nowhere(fake: FakeRegistry) -> None:
    fake.on("POST", "/uploads/", Reply(202))
    assert code(client(fake), SMALL) == "registry.bad-answer"
    fake.on("POST", "/uploads/", Reply(202, {"Location": "file:///etc/passwd"}))
    assert code(client(fake), SMALL) == "registry.redirect"


# ---- what breaks in between ------------------------------------------------------------


def test_a_connection_that_breaks_in_a_chunk_goes_on_where_the_registry_is(
    fake: FakeRegistry,
) -> None:
    fake.on("PATCH", "/uploads/", lambda _: None)
    fake.on("PATCH", "/uploads/", Reply(0), takes=100_000)
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)
    ranges = [s.headers["content-range"] for s in fake.seen if s.method == "PATCH"]
    assert ranges[:3] == ["0-299999", "300000-599999", "400000-699999"]
    assert fake.count("POST") == 1, "no new upload was begun"


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_chunk_that_fails_is_sent_again(fake: FakeRegistry, status: int) -> None:
    fake.on("PATCH", "/uploads/", Reply(status))
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)
    assert fake.count("POST") == 1


def test_416_goes_on_where_the_registry_is(fake: FakeRegistry) -> None:
    """The registry has more than it said: the answer to a chunk was lost on the way."""

    def taken_and_lost(request: Request) -> Reply:
        fake.uploads[request.path.rsplit("/", 1)[1]] += request.body
        location = request.path + "?_state=x"
        return Reply(202, {"Location": location, "Range": "0-149999"})

    fake.on("PATCH", "/uploads/", taken_and_lost)
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)
    ranges = [s.headers["content-range"] for s in fake.seen if s.method == "PATCH"]
    assert ranges[:3] == ["0-299999", "150000-449999", "300000-599999"]
    assert fake.count("POST") == 1


def test_a_registry_that_takes_less_than_was_sent(fake: FakeRegistry) -> None:
    def half(request: Request) -> Reply:
        upload = request.path.rsplit("/", 1)[1]
        fake.uploads[upload] += request.body[: len(request.body) // 2 or 1]
        size = len(fake.uploads[upload])
        return Reply(202, {"Location": request.path, "Range": f"0-{size - 1}"})

    fake.on("PATCH", "/uploads/", half, times=6)
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)


def test_an_upload_that_the_registry_lost_begins_anew(fake: FakeRegistry) -> None:
    def lost(request: Request) -> None:
        fake.uploads.clear()

    fake.on("PATCH", "/uploads/", lambda _: None)
    fake.on("PATCH", "/uploads/", lost)
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE)
    assert fake.count("POST") == 2
    fake.on("PUT", "/uploads/", lost)
    send(client(fake), SMALL)
    assert arrived(fake, SMALL)


def test_an_upload_that_is_lost_each_time_is_given_up(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", error(404, "BLOB_UPLOAD_UNKNOWN"), times=None)
    assert code(client(fake), SMALL) == "registry.upload-lost"
    assert fake.count("POST") == 3


@pytest.mark.parametrize("status", [0, 500])
def test_a_blob_that_came_through_although_the_answer_did_not(
    fake: FakeRegistry, status: int
) -> None:
    def taken(request: Request) -> Reply:
        fake.put_blob("team/kiln", request.body)
        return Reply(status)

    fake.on("PUT", "/uploads/", taken)
    send(client(fake), SMALL)
    assert fake.count("PUT") == 1, "it is not sent twice"


def test_a_registry_that_never_gets_further(fake: FakeRegistry) -> None:
    fake.on(
        "PATCH", "/uploads/", lambda r: Reply(202, {"Location": r.path, "Range": "0-0"}), times=None
    )
    send(client(fake, chunk=CHUNK), LARGE)
    assert arrived(fake, LARGE), "sent whole in the end"
    assert fake.count("PATCH") == 3
    assert fake.count("POST") == 2


def test_a_registry_that_counts_more_than_was_sent(fake: FakeRegistry) -> None:
    more = lambda r: Reply(202, {"Location": r.path, "Range": "0-99999999"})  # noqa: E731
    fake.on("PATCH", "/uploads/", more, times=None)
    assert code(client(fake, chunk=CHUNK), LARGE) == "registry.upload-lost"


@pytest.mark.parametrize("status", [400, 405, 411, 501])
def test_a_registry_that_takes_no_chunks_gets_the_blob_whole(
    fake: FakeRegistry, status: int
) -> None:
    fake.on("PATCH", "/uploads/", Reply(status), times=None)
    registry = client(fake, chunk=CHUNK)
    send(registry, LARGE)
    send(registry, LARGE[1:])
    assert arrived(fake, LARGE)
    assert arrived(fake, LARGE[1:])
    assert fake.count("PATCH") == 1, "it is not tried again"


def test_a_proxy_that_takes_no_large_bodies_gets_smaller_ones(fake: FakeRegistry) -> None:
    data = LARGE * 5

    def limit(request: Request) -> Reply | None:
        return Reply(413, {}, b"<html>") if len(request.body) > 1_500_000 else None

    fake.on("PUT", "/uploads/", limit, times=None)
    fake.on("PATCH", "/uploads/", limit, times=None)
    registry = client(fake)
    send(registry, data)
    assert arrived(fake, data)
    posts = fake.count("POST")
    send(registry, data[1:])
    assert fake.count("POST") == posts + 1, "the size is remembered"


def test_a_proxy_that_takes_hardly_anything_is_an_error(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", Reply(413), times=None)
    fake.on("PATCH", "/uploads/", Reply(413), times=None)
    assert code(client(fake), LARGE * 5) == "registry.request-too-large"
    assert code(client(fake), SMALL) == "registry.request-too-large"


def test_no_chunks_and_no_large_bodies_is_an_error_and_no_circle(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", Reply(413), times=None)
    fake.on("PATCH", "/uploads/", Reply(405), times=None)
    assert code(client(fake), LARGE * 5) == "registry.upload-lost"
    assert fake.count("POST") < 20


# ---- digests ---------------------------------------------------------------------------


def test_r1_a_refused_digest_is_not_tried_again(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", error(400, "DIGEST_INVALID", "changed on the way"))
    with pytest.raises(JudgedBad) as caught:
        client(fake).write_blob(digest(SMALL), source(SMALL), lambda _: None)
    assert (caught.value.code, caught.value.exit_code) == ("registry.digest-refused", 1)
    assert fake.count("PUT") == 1


def test_r1_another_digest_in_the_answer(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", Reply(201, {"Docker-Content-Digest": "sha256:" + "0" * 64}))
    assert code(client(fake), SMALL) == "registry.digest-mismatch"


def test_a_registry_that_says_201_and_has_nothing(fake: FakeRegistry) -> None:
    fake.on("PUT", "/uploads/", Reply(201))
    with pytest.raises(Unavailable) as caught:
        client(fake).write_blob(digest(SMALL), source(SMALL), lambda _: None)
    assert caught.value.code == "registry.forgotten"


def test_a_registry_that_keeps_less_than_it_got(fake: FakeRegistry) -> None:
    def less(request: Request) -> Reply:
        fake.blobs["team/kiln", str(digest(SMALL))] = SMALL[:-1]
        return Reply(201)

    fake.on("PUT", "/uploads/", less)
    with pytest.raises(JudgedBad) as caught:
        client(fake).write_blob(digest(SMALL), source(SMALL), lambda _: None)
    assert caught.value.code == "registry.wrong-size"


@pytest.mark.parametrize("chunk", [CHUNK, 1 << 26])
@pytest.mark.parametrize("damaged", [LARGE[:-1] + b"x", b"x" + LARGE[1:], LARGE[:-1]])
def test_a_blob_that_is_damaged_here_is_not_sent_to_its_end(
    fake: FakeRegistry, chunk: int, damaged: bytes
) -> None:
    with pytest.raises(Damaged) as caught:
        client(fake, chunk=chunk).write_blob(digest(LARGE), source(damaged), lambda _: None)
    assert (caught.value.code, caught.value.exit_code) == ("store.corrupt-blob", 5)
    assert fake.blobs == {}


# ---- mounts ----------------------------------------------------------------------------


def test_r5_201_is_a_mount_and_is_looked_at(fake: FakeRegistry) -> None:
    fake.put_blob("team/other", SMALL)
    registry = client(fake)
    assert registry.mount(digest(SMALL), "team/other")
    assert arrived(fake, SMALL)
    assert fake.count("HEAD") == 1
    fake.on("POST", "/uploads/", Reply(201))
    assert not registry.mount(digest(LARGE), "team/other"), "201, and it is not there"


def test_r5_202_is_no_mount_but_an_upload(fake: FakeRegistry) -> None:
    registry = client(fake)
    assert not registry.mount(digest(SMALL), "team/other")
    send(registry, SMALL)
    assert arrived(fake, SMALL)
    assert fake.count("POST") == 1, "the upload that was opened is used"


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_a_refused_mount_is_sent_instead(fake: FakeRegistry, status: int) -> None:
    fake.on("POST", "/uploads/", Reply(status))
    registry = client(fake)
    assert not registry.mount(digest(SMALL), "team/other")
    send(registry, SMALL)
    assert arrived(fake, SMALL)


def test_a_mount_asks_for_the_right_to_read_there() -> None:
    with FakeRegistry("bearer") as fake:
        fake.put_blob("team/other", SMALL)
        assert client(fake).mount(digest(SMALL), "team/other")
        asked = next(s for s in fake.seen if s.path == "/token")
        assert asked.query["scope"] == [
            "repository:team/kiln:pull,push",
            "repository:team/other:pull",
        ]


def test_halt_ends_an_upload(fake: FakeRegistry) -> None:
    registry = client(fake, chunk=CHUNK)

    def stop(request: Request) -> None:
        registry.halt()

    fake.on("PATCH", "/uploads/", stop)
    with pytest.raises(Stopped):
        registry.write_blob(digest(LARGE), source(LARGE), lambda _: None)
    assert fake.blobs == {}
