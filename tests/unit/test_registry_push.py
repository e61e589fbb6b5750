"""Pushing images: in which order, what is not sent, and what random faults may do to it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.canonical import sha256
from kiln.errors import BadInput, CannotHere, Damaged, JudgedBad, KilnError, Unavailable
from kiln.image.read import Image, read_image
from kiln.progress import Silent
from kiln.registry.names import parse_name
from kiln.registry.push import Pushed, find_image, push, push_image
from kiln.source.entry import data_entry
from kiln.store import Store
from tests.helpers.fake_registry import FakeRegistry, Reply, Request, client, error, sha
from tests.helpers.server import Notes
from tests.helpers.tiny_image import RUNTIME, put_image, tar_bytes

LAYERS = 6


def layer(number: int) -> bytes:
    return tar_bytes([data_entry(f"file{number}", random.Random(number).randbytes(20_000))])


@pytest.fixture
def image(store: Store) -> Image:
    return read_image(store, put_image(store, [layer(n) for n in range(LAYERS)], RUNTIME).sha256)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry("bearer") as registry:
        yield registry


def go(
    fake: FakeRegistry, store: Store, image: Image, tag: str = "v1", chunk: int = 1 << 26
) -> Pushed:
    return push_image(store, image, client(fake, chunk=chunk), tag, Silent())


def whole(fake: FakeRegistry, image: Image, tag: str = "v1") -> bool:
    """Whether the tag names the image, and all of it is there."""
    data, _ = fake.manifests["team/kiln", tag]
    document = json.loads(data)
    parts = [document["config"], *document["layers"]]
    there = [sha(fake.blobs.get(("team/kiln", p["digest"]), b"")) == p["digest"] for p in parts]
    return sha(data) == str(image) and all(there)


def test_blobs_then_the_manifest_then_the_tag(
    fake: FakeRegistry, store: Store, image: Image
) -> None:
    notes = Notes()
    pushed = push_image(store, image, client(fake), "v1", notes)
    assert whole(fake, image)
    puts = [s.path.rpartition("/")[2] for s in fake.seen if s.method == "PUT"]
    assert puts[-2:] == [str(image), "v1"]
    assert len(puts) == LAYERS + 3
    assert pushed.sent.blobs == LAYERS + 1
    assert pushed.sent.size == sum(x.digest.size for x in image.layers) + image.config.size
    assert pushed.bytes_sent == pushed.sent.size + 2 * image.manifest.size
    ((_, total, done),) = notes.tasks
    assert total == sum(done) == pushed.sent.size


def test_what_is_there_is_not_sent(fake: FakeRegistry, store: Store, image: Image) -> None:
    go(fake, store, image)
    fake.seen.clear()
    again = go(fake, store, image)
    assert again.bytes_sent == 0
    assert again.skipped.blobs == LAYERS + 1
    assert {s.method for s in fake.seen if s.path != "/token"} <= {"GET", "HEAD"}
    other = go(fake, store, image, "v2")
    assert other.bytes_sent == image.manifest.size
    assert go(fake, store, image, "").bytes_sent == 0


def test_without_a_tag(fake: FakeRegistry, store: Store, image: Image) -> None:
    go(fake, store, image, "")
    assert set(fake.manifests) == {("team/kiln", str(image))}


def test_a_layer_that_occurs_twice_is_sent_once(fake: FakeRegistry, store: Store) -> None:
    same = read_image(store, put_image(store, [layer(1), layer(1)], RUNTIME).sha256)
    assert go(fake, store, same).sent.blobs == 2
    assert whole(fake, same)


def test_a_forgotten_blob_is_sent_again_although_the_manifest_is_there(
    fake: FakeRegistry, store: Store, image: Image
) -> None:
    go(fake, store, image)
    del fake.blobs["team/kiln", str(image.layers[2].digest)]
    again = go(fake, store, image)
    assert again.sent.blobs == 1
    assert whole(fake, image)


def test_a_failure_leaves_no_manifest(fake: FakeRegistry, store: Store, image: Image) -> None:
    bad = str(image.layers[3].digest)
    fake.on(
        "PUT",
        "/uploads/",
        lambda r: error(403, "DENIED") if r.query["digest"] == [bad] else None,
        times=None,
    )
    with pytest.raises(Unavailable) as caught:
        go(fake, store, image)
    assert caught.value.code == "registry.denied"
    assert fake.manifests == {}


def test_the_same_failure_of_many_blobs_is_told_once(
    fake: FakeRegistry, store: Store, image: Image
) -> None:
    fake.on("POST", "/uploads/", error(403, "DENIED"), times=None)
    with pytest.raises(Unavailable) as caught:
        go(fake, store, image)
    assert caught.value.code == "registry.denied"
    assert fake.count("POST") <= 4, "no further blob was begun"


def test_a_blob_damaged_in_the_store(fake: FakeRegistry, store: Store, image: Image) -> None:
    path = store.blobs.path(image.layers[1].digest.sha256)
    path.chmod(0o644)
    path.write_bytes(b"x" * image.layers[1].digest.size)
    with pytest.raises(Damaged) as caught:
        go(fake, store, image)
    assert caught.value.code == "store.corrupt-blob"
    assert fake.manifests == {}


def test_a_tag_that_reads_back_as_something_else(
    fake: FakeRegistry, store: Store, image: Image
) -> None:
    go(fake, store, image)
    other = b'{"schemaVersion": 2}'

    def stale(request: Request) -> Reply:
        kind = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
        return Reply(200, kind, other)

    fake.on("GET", "/manifests/v1", stale)
    with pytest.raises(JudgedBad) as caught:
        go(fake, store, image)
    assert caught.value.code == "registry.digest-mismatch"


def test_blobs_go_several_at_once(fake: FakeRegistry, store: Store, image: Image) -> None:
    meet = threading.Barrier(4, timeout=20)
    fake._lock = threading.RLock()  # rules below wait outside of it

    def together(request: Request) -> None:
        fake._lock.release()
        try:
            meet.wait()
        finally:
            fake._lock.acquire()

    fake.on("POST", "/uploads/", together, times=4)
    go(fake, store, image)
    assert whole(fake, image)


# ---- mounts ----------------------------------------------------------------------------


def named(fake: FakeRegistry, rest: str) -> str:
    return f"{fake.host}/{rest}"


def test_what_was_pushed_to_one_repository_is_mounted_in_another(
    store: Store, image: Image
) -> None:
    with FakeRegistry() as fake:
        push(store, image, parse_name(named(fake, "team/first:v1")), Silent())
        pushed = push(store, image, parse_name(named(fake, "team/kiln:v1")), Silent())
        assert pushed.mounted.blobs == LAYERS + 1
        assert pushed.bytes_sent == 2 * image.manifest.size
        assert whole(fake, image)


def test_a_repository_that_has_collected_them_is_no_hindrance(store: Store, image: Image) -> None:
    with FakeRegistry() as fake:
        push(store, image, parse_name(named(fake, "team/first:v1")), Silent())
        fake.blobs.clear()
        pushed = push(store, image, parse_name(named(fake, "team/kiln:v1")), Silent())
        assert (pushed.mounted.blobs, pushed.sent.blobs) == (0, LAYERS + 1)
        assert whole(fake, image)


def test_a_named_repository_to_mount_from(store: Store, image: Image, tmp_path: Path) -> None:
    with FakeRegistry() as fake:
        push(store, image, parse_name(named(fake, "team/first:v1")), Silent())
        (store.root / "pushed.json").write_text("not what it was")
        name = parse_name(named(fake, "team/kiln:v1"))
        pushed = push(store, image, name, Silent(), mount_from=["team/none", "team/first"])
        assert pushed.mounted.blobs == LAYERS + 1
        with pytest.raises(BadInput) as caught:
            push(store, image, name, Silent(), mount_from=["Team/../x"])
        assert caught.value.code == "registry.bad-name"
    folder = parse_name(f"oci:{tmp_path}/out:v1")
    with pytest.raises(BadInput) as caught:
        push(store, image, folder, Silent(), mount_from=["team/first"])
    assert caught.value.code == "registry.bad-name"


def test_nobody_collects_while_it_is_sent(store: Store, image: Image) -> None:
    seen: list[str] = []

    def collect(request: Request) -> None:
        try:
            with store.collecting():
                seen.append("collected")
        except CannotHere as error:
            seen.append(error.code)

    with FakeRegistry() as fake:
        fake.on("POST", "/uploads/", collect, times=None)
        push(store, image, parse_name(named(fake, "team/kiln:v1")), Silent())
    assert seen == ["store.busy"] * (LAYERS + 1)


# ---- names and targets -----------------------------------------------------------------


def test_into_a_layout_folder(store: Store, image: Image, tmp_path: Path) -> None:
    name = parse_name(f"oci:{tmp_path}/out:v1")
    pushed = push(store, image, name, Silent())
    assert pushed.sent.blobs == LAYERS + 1
    copy = Store(tmp_path / "out")
    assert read_image(copy, image.manifest.sha256) == image
    for blob in copy.blobs:
        assert sha256(copy.blobs.path(blob).read_bytes()) == blob
    assert push(store, image, name, Silent()).bytes_sent == 0


def test_a_digest_in_the_name_is_refused(store: Store, image: Image) -> None:
    with pytest.raises(BadInput) as caught:
        push(store, image, parse_name(f"registry.example/kiln@{image}"), Silent())
    assert caught.value.code == "registry.bad-name"


def test_a_digest_is_found_in_the_store_without_a_project(store: Store, image: Image) -> None:
    def no_project() -> None:
        raise AssertionError("the project was asked for")

    assert find_image(no_project, store, str(image)) == image  # type: ignore[arg-type]
    assert find_image(no_project, store, image.manifest.sha256) == image  # type: ignore[arg-type]
    store.blobs.remove(image.layers[0].digest.sha256)
    with pytest.raises(Damaged) as caught:
        find_image(no_project, store, str(image))  # type: ignore[arg-type]
    assert caught.value.code == "store.missing-blob"


# ---- faults ----------------------------------------------------------------------------


class Faults:
    """Breaks requests at random; what it did is in `done`."""

    def __init__(self, fake: FakeRegistry, seed: int, rate: float) -> None:
        self.fake, self.random, self.rate = fake, random.Random(seed), rate
        self.done: list[str] = []
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH"):
            fake.on(method, "/", self, times=None)

    def __call__(self, request: Request) -> Reply | None:
        if self.random.random() > self.rate:
            return None
        kinds = ["reset", "500", "503", "429", "html", "404", "expire", "lose", "forget", "lie",
                 "cut", "empty", "gone"]  # fmt: skip
        kind = self.random.choice(kinds)
        self.done.append(f"{kind} {request.method} {request.path}")
        if kind in ("expire", "lose", "forget"):
            {"expire": self.fake.expire, "lose": self.fake.uploads.clear, "forget": self._forget}[
                kind
            ]()
            return None
        good = self.fake._refused(request) or self.fake._answer(request)
        return {
            "reset": Reply(0),
            "500": error(500, "UNKNOWN"),
            "503": Reply(503, {"Retry-After": "0"}),
            "429": Reply(429),
            "html": Reply(200, {"Content-Type": "text/html"}, b"<html><title>Login</title>"),
            "404": error(404, "NAME_UNKNOWN"),
            "lie": Reply(
                good.status,
                {**good.headers, "Docker-Content-Digest": "sha256:" + "0" * 64},
                good.body,
            ),
            "cut": Reply(good.status, good.headers, good.body, cut=len(good.body) // 2),
            "empty": Reply(201, {"Location": request.path}),
            "gone": Reply(0),  # it was done, and the answer is lost
        }[kind]

    def _forget(self) -> None:
        if self.fake.blobs:
            del self.fake.blobs[self.random.choice(sorted(self.fake.blobs))]


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_never_make_a_wrong_image_and_the_next_try_succeeds(
    store: Store, image: Image, seed: int
) -> None:
    with FakeRegistry("bearer") as fake:
        faults = Faults(fake, seed, rate=0.25)
        ended: list[KilnError] = []
        for _ in range(4):
            try:
                go(fake, store, image, chunk=6000)
            except KilnError as problem:
                ended.append(problem)
            if ("team/kiln", "v1") in fake.manifests:
                assert sha(fake.manifests["team/kiln", "v1"][0]) == str(image)
        assert {problem.exit_code for problem in ended} <= {1, 3}, ended
        assert len(faults.done) > 10, "too few faults to test anything"
        faults.rate = -1
        pushed = go(fake, store, image)
        assert whole(fake, image), (ended, faults.done)
        assert pushed.digest == str(image)
        assert go(fake, store, image).bytes_sent == 0
