"""Against Debian's docker-registry on loopback, by the command line: what a user would see."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.canonical import digest
from kiln.errors import JudgedBad, KilnError
from kiln.fetch.http import Patience
from kiln.image.oci import INDEX, MANIFEST
from kiln.registry.docker_config import Login
from kiln.registry.http import HttpRegistry
from kiln.registry.model import Manifest
from kiln.registry.names import Repository, parse_name
from tests.helpers.fake_registry import FakeRegistry, Request, source
from tests.helpers.registry import PASSWORD, USER, DockerRegistry, docker_registry
from tests.helpers.small import Small, make_small


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Small, str]:
    """The small pin, built once; and its digest."""
    small = make_small(tmp_path_factory.mktemp("small"))
    assert small.kiln("lock").returncode == 0
    result = small.kiln("build")
    assert result.returncode == 0, result.stderr
    return small, result.stdout.strip()


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path / "registry", delete=True) as registry:
        yield registry


def client(
    docker: DockerRegistry, repository: str = "team/kiln", chunk: int = 1 << 26
) -> HttpRegistry:
    place = parse_name(f"{docker.address}/{repository}").place
    assert isinstance(place, Repository)
    patience = Patience(attempts=20, delay=0.1, longest=1)
    return HttpRegistry(place, login=lambda: None, patience=patience, chunk=chunk)


def stored(docker: DockerRegistry, blob: str) -> Path:
    sha = blob.removeprefix("sha256:")
    return docker.data / "docker/registry/v2/blobs/sha256" / sha[:2] / sha / "data"


# ---- kiln push -------------------------------------------------------------------------


def test_push_twice_and_to_another_repository(
    built: tuple[Small, str], docker: DockerRegistry
) -> None:
    small, image = built
    name = f"{docker.address}/team/kiln"
    first = small.kiln("push", f"{name}:v1")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{image}\n", "stdout is the digest alone"
    assert f"{name}:v1 is {image}" in first.stderr
    raw = (small.store / "blobs/sha256" / image.removeprefix("sha256:")).read_bytes()
    assert stored(docker, image).read_bytes() == raw, "the very bytes"
    for layer in json.loads(raw)["layers"]:
        data = stored(docker, layer["digest"]).read_bytes()
        assert "sha256:" + hashlib.sha256(data).hexdigest() == layer["digest"]

    again = json.loads(small.kiln("push", "small", f"{name}:v1", "--json").stdout)
    assert again["digest"] == image
    assert again["bytes_sent"] == 0
    assert again["blobs"]["skipped"]["count"] == len(json.loads(raw)["layers"]) + 1

    other = json.loads(small.kiln("push", image, f"{docker.address}/prod:v1", "--json").stdout)
    assert other["blobs"]["mounted"]["count"] == again["blobs"]["skipped"]["count"]
    assert other["bytes_sent"] == 2 * len(raw)
    assert client(docker, "prod").tags() == ["v1"]


def test_push_of_what_is_not_built(tmp_path: Path, docker: DockerRegistry) -> None:
    small = make_small(tmp_path)
    assert small.kiln("lock").returncode == 0
    name = f"{docker.address}/kiln:v1"
    for words in ([name], ["small", name]):
        result = small.kiln("push", *words)
        assert result.returncode == 2
        assert "target.not-built" in result.stderr
        assert "kiln build small" in result.stderr
    for target in ("sha256:" + "0" * 64, "nothing"):
        assert small.kiln("push", target, name).returncode == 2
    assert small.kiln("push", "small", "no-host:v1").returncode == 2
    assert small.kiln("push").returncode == 2


def test_push_to_where_nobody_is(built: tuple[Small, str]) -> None:
    small, _ = built
    result = small.kiln("push", "https://localhost:1/kiln:v1", "--json")
    assert result.returncode == 3
    assert "registry.unreachable" in result.stderr
    assert json.loads(result.stdout)["error"]["code"] == "registry.unreachable"


def test_push_into_a_layout_and_from_it(built: tuple[Small, str], tmp_path: Path) -> None:
    small, image = built
    result = small.kiln("push", f"oci:{tmp_path}/out:v1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{image}\n"
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert [m["digest"] for m in index["manifests"]] == [image]
    # A layout has the shape of a store: what is in it can be pushed on.
    with docker_registry(tmp_path / "registry") as docker:
        environment = {"KILN_STORE": str(tmp_path / "out")}
        result = small.kiln("push", image, f"{docker.address}/kiln:v1", **environment)
        assert result.returncode == 0, result.stderr
        assert stored(docker, image).exists()


def test_a_registry_with_a_password(built: tuple[Small, str], tmp_path: Path) -> None:
    small, image = built
    folder = tmp_path / "docker"
    folder.mkdir()
    helper = folder / "docker-credential-test"

    def helped(password: str) -> None:
        answer = json.dumps({"ServerURL": "x", "Username": USER, "Secret": password})
        helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
        helper.chmod(0o755)

    helped(PASSWORD)
    env = {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
    with docker_registry(tmp_path / "registry", login=True) as docker:
        name = f"{docker.address}/kiln:v1"
        result = small.kiln("push", name, **env)
        assert result.returncode == 3
        assert "registry.unauthorized" in result.stderr
        assert "docker login" in result.stderr
        (folder / "config.json").write_text(json.dumps({"credHelpers": {docker.address: "test"}}))
        result = small.kiln("push", name, **env)
        assert result.returncode == 0, result.stderr
        assert stored(docker, image).exists()
        helped("wr0ng-s3cret")
        result = small.kiln("push", name, **env)
        assert result.returncode == 3
        assert "registry.unauthorized" in result.stderr
        assert "wr0ng-s3cret" not in result.stderr


# ---- interrupted, killed, broken -------------------------------------------------------


def start(small: Small, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kiln", *arguments],
        cwd=small.root,
        env=small.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_it_goes_on_where_it_stopped(
    built: tuple[Small, str], number: signal.Signals
) -> None:
    small, image = built
    blobs = blobs_of(small, image)
    with FakeRegistry() as fake:
        held, release = threading.Event(), threading.Event()

        def hold(request: Request) -> None:
            """The last blob does not get through before the signal."""
            if len(fake.blobs) == len(blobs) - 1:
                held.set()
                fake._lock.release()
                try:
                    release.wait(30)
                finally:
                    fake._lock.acquire()

        fake.on("PUT", "/uploads/", hold, times=None)
        process = start(small, "push", f"{fake.host}/kiln:v1", "--jobs", "1")
        assert held.wait(60), process.communicate(timeout=10)
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        release.set()
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert out == ""
        assert number == signal.SIGKILL or "the next run goes on there" in err
        assert fake.manifests == {}, "no tag names what is not whole"
        fake._rules.clear()
        time.sleep(0.2)
        there = len(fake.blobs)
        assert there >= len(blobs) - 1
        again = small.kiln("push", f"{fake.host}/kiln:v1", "--json")
        assert again.returncode == 0, again.stderr
        result = json.loads(again.stdout)
        assert result["blobs"]["skipped"]["count"] == there
        assert result["blobs"]["sent"]["count"] == len(blobs) - there
        assert set(fake.manifests) == {("kiln", image), ("kiln", "v1")}


def blobs_of(small: Small, image: str) -> set[str]:
    raw = (small.store / "blobs/sha256" / image.removeprefix("sha256:")).read_bytes()
    document = json.loads(raw)
    return {part["digest"] for part in [document["config"], *document["layers"]]}


def test_a_registry_that_is_killed_and_started_again_in_mid_upload(
    docker: DockerRegistry,
) -> None:
    data = os.urandom(6 << 20)
    registry = client(docker, chunk=1 << 20)
    sent = 0

    def progress(amount: int) -> None:
        nonlocal sent
        sent += amount
        if sent > 3 << 20 and not killed.is_set():
            killed.set()
            docker.kill()
            restart.start()

    killed = threading.Event()
    restart = threading.Timer(0.5, docker.start)
    registry.write_blob(digest(data), source(data), progress)
    restart.join()
    assert killed.is_set()
    assert stored(docker, str(digest(data))).read_bytes() == data
    assert sent == len(data)


def test_a_registry_that_is_gone_in_mid_push(built: tuple[Small, str], tmp_path: Path) -> None:
    small, _ = built
    with docker_registry(tmp_path / "registry") as docker:
        name = f"{docker.address}/kiln:v1"
        assert small.kiln("push", name).returncode == 0
        docker.kill()
        result = small.kiln("push", name)
        assert result.returncode == 3
        assert "registry.unreachable" in result.stderr
        docker.start()
        assert small.kiln("push", name).returncode == 0


# ---- the client against the real thing -------------------------------------------------


def test_blobs_whole_and_in_chunks(docker: DockerRegistry) -> None:
    for chunk in (1 << 26, 300_000):
        data = os.urandom(1_000_000)
        registry = client(docker, chunk=chunk)
        assert not registry.has_blob(digest(data))
        registry.write_blob(digest(data), source(data), lambda _: None)
        assert stored(docker, str(digest(data))).read_bytes() == data
        assert b"".join(registry.read_blob(digest(data))) == data
    assert not registry.mount(digest(data), "team/none"), "R5: 202"
    assert client(docker, "other").mount(digest(data), "team/kiln"), "R5: 201"
    assert client(docker, "other").has_blob(digest(data))


def manifest(config: bytes, **more: object) -> Manifest:
    kind = "application/vnd.oci.empty.v1+json"
    part = {"mediaType": kind, "digest": str(digest(config)), "size": len(config)}
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": part, "layers": [part], **more}
    return Manifest(json.dumps(document, indent=1).encode() + b"\n", MANIFEST)


def code(function: object, *arguments: object) -> str:
    assert callable(function)
    with pytest.raises(KilnError) as caught:
        function(*arguments)
    return caught.value.code


def test_manifests_tags_referrers_and_deleting(docker: DockerRegistry) -> None:
    registry = client(docker)
    assert code(registry.tags) == "registry.not-found"
    assert code(registry.write_manifest, manifest(b"{}")) == "registry.blob-unknown", "R6"
    registry.write_blob(digest(b"{}"), source(b"{}"), lambda _: None)
    image = manifest(b"{}")
    registry.write_manifest(image, "v1")
    assert registry.read_manifest("v1") == image, "R2: odd blanks and the line's end are kept"
    for number in range(3):
        registry.write_manifest(image, f"t{number}")
    assert registry.tags() == ["t0", "t1", "t2", "v1"]

    subject = {"mediaType": MANIFEST, "digest": str(image.digest), "size": image.digest.size}
    about = manifest(b"{}", artifactType="x/verdict", subject=subject)
    assert registry.referrers(image.digest) == []
    registry.write_manifest(about)
    (found,) = registry.referrers(image.digest, "x/verdict")
    assert found.digest == str(about.digest)
    assert f"sha256-{image.digest.sha256}" in registry.tags(), "2.8 has no API of them"

    child = {"mediaType": MANIFEST, "digest": str(image.digest), "size": image.digest.size}
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [child]}
    index = Manifest(json.dumps(document).encode(), INDEX)
    registry.write_manifest(index, "all")
    assert registry.read_manifest("all") == index

    registry.delete(str(image.digest))
    assert registry.resolve("v1") is None
    assert code(registry.delete, "all") == "registry.unsupported", "no tag alone"


def test_a_blob_that_rots_in_the_registry_is_found_out(docker: DockerRegistry) -> None:
    data = os.urandom(100_000)
    registry = client(docker)
    registry.write_blob(digest(data), source(data), lambda _: None)
    stored(docker, str(digest(data))).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(JudgedBad) as caught:
        list(registry.read_blob(digest(data)))
    assert caught.value.code == "registry.digest-mismatch"


def test_basic_with_an_odd_password(tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry", login=True) as docker:
        place = parse_name(f"{docker.address}/kiln").place
        assert isinstance(place, Repository)
        registry = HttpRegistry(place, login=lambda: Login(USER, PASSWORD))
        registry.write_blob(digest(b"x"), source(b"x"), lambda _: None)
        assert registry.has_blob(digest(b"x"))
