"""One registry is as good as another: the same promises over HTTP and in a layout folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.canonical import Digest, digest
from kiln.errors import Damaged, JudgedBad, KilnError, Unavailable
from kiln.fetch.failures import Stopped
from kiln.image.oci import INDEX, MANIFEST
from kiln.registry.layout import LayoutRegistry
from kiln.registry.model import Manifest, Registry
from tests.helpers.fake_registry import FakeRegistry, client, source

CONFIG, LAYER = b'{"os": "linux"}', bytes(range(256)) * 9_000
EMPTY = "application/vnd.oci.empty.v1+json"


@pytest.fixture(params=["http", "http-without-referrers", "layout"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if request.param == "layout":
        yield LayoutRegistry(tmp_path / "layout")
        return
    with FakeRegistry("bearer", referrers=request.param == "http") as fake:
        yield client(fake)


def describe(data: bytes, kind: str = EMPTY) -> dict[str, object]:
    return {"mediaType": kind, "digest": str(digest(data)), "size": len(data)}


def manifest(note: str = "", **more: object) -> Manifest:
    document = {
        "mediaType": MANIFEST,
        "schemaVersion": 2,
        "config": describe(CONFIG),
        "layers": [describe(LAYER)],
        "annotations": {"note": note},
        **more,
    }
    return Manifest(json.dumps(document, indent=3).encode(), MANIFEST)


def send(registry: Registry, *blobs: bytes) -> None:
    for blob in blobs:
        counted: list[int] = []
        registry.write_blob(digest(blob), source(blob), counted.append)
        assert sum(counted) == len(blob)


def code(function: object, *arguments: object) -> str:
    assert callable(function)
    with pytest.raises(KilnError) as caught:
        function(*arguments)
    return caught.value.code


def test_blobs(registry: Registry) -> None:
    for blob in (LAYER, b""):
        assert not registry.has_blob(digest(blob))
        assert code(list, registry.read_blob(digest(blob))) == "registry.not-found"
        send(registry, blob)
        assert registry.has_blob(digest(blob))
        assert b"".join(registry.read_blob(digest(blob))) == blob
        send(registry, blob)


def test_a_blob_of_another_size(registry: Registry) -> None:
    send(registry, LAYER)
    with pytest.raises(JudgedBad) as caught:
        registry.has_blob(Digest(digest(LAYER).sha256, 5))
    assert caught.value.code == "registry.wrong-size"


def test_a_damaged_source(registry: Registry) -> None:
    with pytest.raises(Damaged) as caught:
        registry.write_blob(digest(LAYER), source(LAYER[:-1] + b"x"), lambda _: None)
    assert caught.value.code == "store.corrupt-blob"
    assert not registry.has_blob(digest(LAYER))


def test_manifests_and_tags(registry: Registry) -> None:
    assert code(registry.tags) == "registry.not-found"
    assert registry.resolve("v1") is None
    send(registry, CONFIG, LAYER)
    first, second = manifest("1"), manifest("2")
    registry.write_manifest(first)
    assert registry.tags() == []
    assert registry.read_manifest(str(first.digest)) == first
    registry.write_manifest(first, "v1")
    registry.write_manifest(second, "v2")
    registry.write_manifest(second, "latest")
    assert registry.tags() == ["latest", "v1", "v2"]
    assert registry.read_manifest("v1").data == first.data
    assert registry.resolve("latest") == second.digest
    registry.write_manifest(first, "latest")
    assert registry.resolve("latest") == first.digest
    assert registry.resolve("v2") == second.digest


def test_a_manifest_whose_tag_went_elsewhere_is_still_there(registry: Registry) -> None:
    send(registry, CONFIG, LAYER)
    registry.write_manifest(manifest("1"), "v1")
    registry.write_manifest(manifest("2"), "v1")
    assert registry.read_manifest(str(manifest("1").digest)) == manifest("1")
    registry.delete("v1")
    assert registry.resolve("v1") is None
    assert registry.read_manifest(str(manifest("2").digest)) == manifest("2")


def test_r6_a_manifest_before_its_blobs(registry: Registry) -> None:
    send(registry, CONFIG)
    with pytest.raises(Unavailable) as caught:
        registry.write_manifest(manifest(), "v1")
    assert caught.value.code == "registry.blob-unknown"
    assert registry.resolve("v1") is None


def test_an_index_of_manifests(registry: Registry) -> None:
    send(registry, CONFIG, LAYER)
    child = manifest()
    registry.write_manifest(child)
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [child.descriptor().as_json()]}
    index = Manifest(json.dumps(document).encode(), INDEX)
    registry.write_manifest(index, "all")
    found = registry.read_manifest("all")
    assert found == index
    assert [d.digest for d in found.parts().manifests] == [str(child.digest)]


def test_deleting_a_manifest_takes_its_tags(registry: Registry) -> None:
    send(registry, CONFIG, LAYER)
    registry.write_manifest(manifest("1"), "v1")
    registry.write_manifest(manifest("1"), "v2")
    registry.write_manifest(manifest("2"), "v3")
    registry.delete(str(manifest("1").digest))
    assert registry.tags() == ["v3"]
    assert registry.resolve(str(manifest("1").digest)) is None
    assert code(registry.delete, "v1") == "registry.not-found"
    assert code(registry.read_manifest, "v1") == "registry.not-found"


def test_referrers(registry: Registry) -> None:
    send(registry, CONFIG, LAYER)
    subject = manifest("subject")
    registry.write_manifest(subject, "v1")
    assert registry.referrers(subject.digest) == []
    about = {"subject": describe(subject.data, MANIFEST)}
    sbom = manifest("a", artifactType="x/sbom", **about)
    verdict = manifest("b", artifactType="x/verdict", **about)
    for one in (verdict, sbom):
        registry.write_manifest(one)
    found = registry.referrers(subject.digest)
    assert {d.digest for d in found} == {str(sbom.digest), str(verdict.digest)}
    assert [d.digest for d in registry.referrers(subject.digest, "x/sbom")] == [str(sbom.digest)]
    assert registry.referrers(sbom.digest) == []
    assert registry.resolve("v1") == subject.digest


def test_names_are_checked(registry: Registry) -> None:
    for reference in ("../x", "sha256:x", "", "a/b"):
        assert code(registry.resolve, reference).startswith("registry.bad-")
        assert code(registry.read_manifest, reference).startswith("registry.bad-")
        assert code(registry.delete, reference).startswith("registry.bad-")
    assert code(registry.write_manifest, manifest(), "../x") == "registry.bad-tag"


def test_halt(registry: Registry) -> None:
    registry.halt()
    with pytest.raises(Stopped):
        registry.write_blob(digest(LAYER), source(LAYER), lambda _: None)
