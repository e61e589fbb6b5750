"""The archive for `docker load`: its bytes, for old engines and for new ones."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from requests.exceptions import ReadTimeout

from kiln.canonical import sha256
from kiln.errors import BadInput, CannotHere
from kiln.image.read import Image, read_image
from kiln.progress import Silent
from kiln.run.engine import Engine
from kiln.run.load import archive, default_name, load, write_archive
from kiln.store import Store
from tests.helpers.tiny_image import RUNTIME, put_image, tar_bytes

NAME = "kiln/tiny:1"


@pytest.fixture
def image(store: Store) -> Image:
    empty = tar_bytes([])  # the same layer twice, as in real images
    return read_image(store, put_image(store, [empty, empty], RUNTIME).sha256)


def written(store: Store, image: Image, name: str = NAME) -> bytes:
    out = io.BytesIO()
    write_archive(store, image, name, out)
    return out.getvalue()


def test_it_is_both_formats_over_the_same_blobs(store: Store, image: Image) -> None:
    data = written(store, image)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        files = {
            m.name: tar.extractfile(m).read()  # type: ignore[union-attr]
            for m in tar
            if m.isreg()
        }
    assert len(names) == len(set(names))
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{sha256(content)}"
    # Old engines: what `docker save` writes.
    (saved,) = json.loads(files["manifest.json"])
    assert saved["RepoTags"] == [NAME]
    assert sha256(files[saved["Config"]]) == image.config.sha256
    assert [sha256(files[layer]) for layer in saved["Layers"]] == [
        layer.digest.sha256 for layer in image.layers
    ]
    # New engines: an OCI layout whose one manifest is the image's very bytes.
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == str(image)
    assert entry["size"] == len(files[f"blobs/sha256/{image.manifest.sha256}"])
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/kiln/tiny:1"


def test_the_same_image_is_the_same_bytes(store: Store, image: Image) -> None:
    data = written(store, image)
    assert data == written(store, image)
    assert len(data) % 512 == 0
    assert max(len(piece) for piece in archive(store, image, NAME)) <= 1 << 20
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in tar} == {(0, 0, "", 315532800)}


def test_blobs_beyond_eight_gigabytes_have_a_size() -> None:
    from kiln.run.load import _header

    header = _header("blobs/sha256/x", 9 << 30)
    with tarfile.open(fileobj=io.BytesIO(header), mode="r|") as tar:
        first = tar.next()
    assert first is not None
    assert first.size == 9 << 30


@pytest.mark.parametrize(
    "name", ["kiln", "Kiln/x:1", "kiln/x:", "a b:1", "kiln/x:1:2", "../x:1", "x:" + "a" * 129]
)
def test_names_that_no_engine_takes(store: Store, image: Image, name: str) -> None:
    with pytest.raises(BadInput) as caught:
        written(store, image, name)
    assert caught.value.code == "run.bad-name"


def test_the_default_name_cannot_be_wrong(store: Store, image: Image) -> None:
    assert default_name(image) == f"kiln/tiny:{image.manifest.sha256[:12]}"
    assert written(store, image, default_name(image))


class FakeEngine:
    """Knows images under ids that the test chooses."""

    def __init__(self, ids: dict[str, str], replies: list[dict[str, Any]] | None = None) -> None:
        self.ids, self.loaded = ids, b""
        self.api = SimpleNamespace(load_image=self._load, timeout=60)
        self.images = SimpleNamespace(get=self._get)
        self._replies = replies or []

    def _get(self, name: str) -> SimpleNamespace:
        from docker.errors import ImageNotFound

        if name not in self.ids:
            raise ImageNotFound("no such image")
        return SimpleNamespace(id=self.ids[name])

    def _load(self, data: Iterator[bytes], quiet: bool) -> list[dict[str, Any]]:
        self.loaded = b"".join(data)
        self.patience = self.api.timeout
        return self._replies


def engine(fake: FakeEngine, version: str = "20.10.24") -> Engine:
    return Engine(cast(Any, fake), version)


def test_both_digests_of_the_lock_are_the_image(store: Store, image: Image) -> None:
    for digest, word in ((image.config, "config"), (image.manifest, "manifest")):
        fake = FakeEngine({str(digest): str(digest)})
        said = load(store, image, engine(fake), NAME, Silent())
        assert said == f"{word} {digest}"
        assert fake.loaded == written(store, image)


def test_nothing_else_is(store: Store, image: Image) -> None:
    other = "sha256:" + 64 * "0"
    for ids in ({NAME: other}, {NAME: other, str(image.config): other}):
        with pytest.raises(CannotHere) as caught:
            load(store, image, engine(FakeEngine(ids)), NAME, Silent())
        assert caught.value.code == "run.engine-digest"
        assert caught.value.where == other


def test_an_engine_that_refuses(store: Store, image: Image) -> None:
    fake = FakeEngine({}, [{"stream": "x"}, {"error": "no space left on device"}])
    with pytest.raises(CannotHere) as caught:
        load(store, image, engine(fake), NAME, Silent())
    assert caught.value.code == "run.load-refused"
    assert "no space" in caught.value.why


def test_an_engine_that_is_slow_and_one_that_goes_silent(store: Store, image: Image) -> None:
    """An engine unpacks for minutes after the last byte, and says nothing meanwhile."""
    fake = FakeEngine({str(image): str(image)})
    load(store, image, engine(fake), NAME, Silent())
    assert fake.patience >= 600
    assert fake.api.timeout == 60, "other calls wait no longer for it"

    def silent(data: Iterator[bytes], quiet: bool) -> None:
        raise ReadTimeout("Read timed out.")

    fake.api.load_image = silent
    with pytest.raises(CannotHere) as caught:
        load(store, image, engine(fake), NAME, Silent())
    assert caught.value.code == "run.load-refused"
    assert "timed out" in caught.value.why


def test_old_engines_and_zstd(store: Store, image: Image) -> None:
    from dataclasses import replace

    zstd = replace(image, layers=tuple(replace(x, compression="zstd") for x in image.layers))
    fake = FakeEngine({str(image): str(image)})
    with pytest.raises(CannotHere) as caught:
        load(store, zstd, engine(fake), NAME, Silent())
    assert caught.value.code == "run.zstd-engine"
    assert not fake.loaded
    assert load(store, zstd, engine(fake, "25.0.3"), NAME, Silent())


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("unix:///nonexistent/docker.sock", "run.no-engine"),
        ("tcp://192.0.2.1:2375", "run.remote-engine"),
        ("ssh://user@host", "run.remote-engine"),
    ],
)
def test_no_engine_is_this_machines_lack(
    monkeypatch: pytest.MonkeyPatch, url: str, code: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    with pytest.raises(CannotHere) as caught:
        Engine.connect()
    assert caught.value.code == code
    assert "bundle" in caught.value.fix
    assert caught.value.exit_code == 4
