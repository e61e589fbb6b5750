"""Reading images: what a well-formed one says, and what hostile ones are refused for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kiln.canonical import Digest, dumps
from kiln.errors import Damaged, KilnError
from kiln.image.oci import INDEX
from kiln.image.read import MAX_DOCUMENT, read_image
from kiln.store import Store
from tests.helpers.tiny_image import RUNTIME, manifest, put_image, tar_bytes

LAYER = tar_bytes([])


def codes(error: KilnError) -> list[str]:
    return [e.code for e in getattr(error, "errors", [error])]


def test_reads_what_config_and_manifest_say(store: Store) -> None:
    digest = put_image(store, [LAYER, LAYER], RUNTIME)
    image = read_image(store, digest.sha256)
    assert image.manifest == digest
    assert str(image) == f"sha256:{digest.sha256}"
    assert store.blobs.has(image.config)
    assert [layer.compression for layer in image.layers] == ["gzip", "gzip"]
    assert image.layers[0].diff_id != image.layers[0].digest.sha256
    assert image.entrypoint[0] == "/usr/bin/python3"
    assert image.user == "1000:0"
    assert image.volumes == ("/var/cache/vllm",)
    assert image.workdir == "/var/cache/vllm"
    assert "A=image" in image.env
    assert image.labels["kiln.pin"] == "tiny"


def test_an_empty_config_means_root_in_slash(store: Store) -> None:
    image = read_image(store, put_image(store, [LAYER], {}).sha256)
    assert (image.user, image.workdir, image.entrypoint, image.volumes) == ("", "/", (), ())


Change = Callable[[dict[str, object]], object]


def altered(store: Store, change: Change) -> str:
    """The digest of a good image's manifest after a change of its parsed form."""
    good = json.loads(store.blobs.read(put_image(store, [LAYER], RUNTIME).sha256))
    change(good)
    return store.blobs.put(dumps(good)).sha256


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m.update(mediaType=INDEX, manifests=[]), "image.index"),
        (lambda m: m.update(mediaType="text/html"), "image.media-type"),
        (lambda m: m.update(schemaVersion=1), "image.media-type"),
        (lambda m: m["config"].update(mediaType="application/json"), "image.media-type"),
        (lambda m: m["layers"][0].update(mediaType="application/x-tar"), "image.media-type"),
        (lambda m: m["layers"][0].update(digest="sha256:../../x"), "image.digest"),
        (lambda m: m["layers"][0].update(digest="md5:" + 32 * "0"), "image.digest"),
        (lambda m: m["layers"][0].update(size=1), "image.size"),
        (lambda m: m["layers"][0].update(urls=["http://x"]), "image.foreign-layer"),
        (lambda m: m["layers"].clear(), "image.layer-count"),
        (lambda m: m["layers"].append({**m["layers"][0]}), "image.layer-count"),
        (lambda m: m.pop("layers"), "image.not-json"),
        (lambda m: m.update(layers={"a": 1}), "image.not-json"),
        (lambda m: m["layers"][0].update(size="big"), "image.not-json"),
    ],
)
def test_refuses_manifests(store: Store, change: Change, code: str) -> None:
    with pytest.raises(KilnError) as caught:
        read_image(store, altered(store, change))
    assert codes(caught.value) == [code]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"os": "windows"}, "image.os"),
        ({"rootfs": {"type": "layers", "diff_ids": ["sha256:zz"]}}, "image.digest"),
        ({"rootfs": {"type": "other", "diff_ids": ["sha256:" + 64 * "0"]}}, "image.layer-count"),
        ({"config": {"Env": ["NOVALUE"]}}, "image.bad-config"),
        ({"config": {"Entrypoint": ["a\0b"]}}, "image.bad-config"),
        ({"config": {"Volumes": {"/a/../../etc": {}}}}, "image.bad-config"),
        ({"config": {"WorkingDir": "relative"}}, "image.bad-config"),
        ({"config": {"Entrypoint": "vllm serve"}}, "image.not-json"),
        ({"config": []}, "image.not-json"),
    ],
)
def test_refuses_configs(store: Store, changes: dict[str, object], code: str) -> None:
    with pytest.raises(KilnError) as caught:
        read_image(store, put_image(store, [LAYER], RUNTIME, **changes).sha256)
    assert codes(caught.value) == [code]


def test_all_problems_at_once(store: Store) -> None:
    def two(m: dict[str, object]) -> None:
        m["layers"][0]["size"] = 1  # type: ignore[index]
        m["config"]["digest"] = "sha256:1"  # type: ignore[index]

    with pytest.raises(KilnError) as caught:
        read_image(store, altered(store, two))
    assert codes(caught.value) == ["image.digest", "image.size"]


def test_not_json_and_too_large(store: Store) -> None:
    for data, code in (
        (b"\x1f\x8b", "image.not-json"),
        (b" " * (MAX_DOCUMENT + 1), "image.too-large"),
    ):
        with pytest.raises(KilnError) as caught:
            read_image(store, store.blobs.put(data).sha256)
        assert caught.value.code == code


def test_blobs_that_are_missing_or_flipped_are_the_stores_fault(store: Store) -> None:
    gone = Digest(64 * "0", 3)
    raw = manifest(gone, [])
    with pytest.raises(Damaged) as caught:
        read_image(store, store.blobs.put(raw).sha256)
    assert caught.value.code == "store.missing-blob"
    digest = put_image(store, [LAYER], RUNTIME)
    config = store.blobs.path(read_image(store, digest.sha256).config.sha256)
    config.chmod(0o644)
    config.write_bytes(config.read_bytes().replace(b"linux", b"linus"))
    with pytest.raises(Damaged) as caught:
        read_image(store, digest.sha256)
    assert caught.value.code == "store.corrupt-blob"
