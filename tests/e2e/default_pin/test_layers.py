"""What lies in the default pin's layers, read from the blobs; nothing is started."""

from __future__ import annotations

import _imp
import importlib.util
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from isal import igzip

from kiln.canonical import sha256
from kiln.image.read import read_image
from kiln.lock.model import Layer, kiln_id, patch_set_id
from kiln.source.tar import EPOCH
from kiln.store import Store
from tests.helpers.default_pin import DefaultImage

pytestmark = [pytest.mark.net, pytest.mark.slow]

SITE = "usr/local/lib/python3.11/dist-packages"
# All of their content is kept and looked at; of the other layers, the Python files of vLLM.
WHOLE = ("system", "patches", "arctic-inference", "configuration")


@dataclass(frozen=True)
class Contents:
    """Every entry of every layer, and the bytes of some files: the highest layer's."""

    members: Mapping[str, tuple[tarfile.TarInfo, ...]]
    files: Mapping[str, bytes]


@pytest.fixture(scope="module")
def contents(default_image: DefaultImage) -> Contents:
    members: dict[str, tuple[tarfile.TarInfo, ...]] = {}
    files: dict[str, bytes] = {}
    for layer in default_image.outputs.layers:
        found = []
        for member, content in _read(default_image, layer):
            found.append(member)
            if content is not None:
                files[member.name] = content
        members[layer.name] = tuple(found)
    return Contents(members, files)


def _read(image: DefaultImage, layer: Layer) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    blob = image.store / "blobs/sha256" / layer.digest.sha256
    with (
        igzip.open(blob) as stream,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|") as archive,
    ):
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]
            wanted = layer.name in WHOLE or member.name.startswith(f"{SITE}/vllm/")
            content = archive.extractfile(member) if wanted and member.isfile() else None
            yield member, content.read() if content else None


def test_no_entry_is_anybodys_or_raises_rights(contents: Contents) -> None:
    for layer, members in contents.members.items():
        assert members, layer
        for member in members:
            where = f"{layer}: {member.name}"
            assert (member.uid, member.gid) == (0, 0), where
            assert member.mtime == EPOCH, where
            assert not member.mode & 0o6000, where
            assert member.isfile() or member.isdir() or member.issym() or member.islnk(), where
            # Group 0 is whoever runs it; only folders with a sticky bit are everybody's.
            assert member.issym() or not member.mode & 0o002 or member.mode & 0o1000, where


def test_layers_are_sorted_and_no_path_comes_twice(contents: Contents) -> None:
    for layer, members in contents.members.items():
        names = [member.name for member in members]
        assert len(names) == len(set(names)), layer


def test_nothing_speaks_of_the_folders_that_it_was_built_in(
    default_image: DefaultImage, contents: Contents
) -> None:
    for folder in (default_image.store, Path.home() / ".cache"):
        for name, content in contents.files.items():
            assert str(folder).encode() not in content, name


def test_the_manifest_inside_holds_the_hash_of_every_patched_file(
    default_image: DefaultImage, contents: Contents
) -> None:
    manifest = json.loads(contents.files["etc/kiln/manifest.json"])
    local = default_image.lock.local
    assert local is not None
    posts = {f"/{SITE}/{f.path}": f.post for patch in local.patches for f in patch.files}
    assert manifest["files"] == posts
    assert len(posts) >= 6
    for path, post in posts.items():
        assert sha256(contents.files[path.removeprefix("/")]) == post, path
    assert manifest["pin"] == default_image.name
    assert manifest["kiln_id"] == kiln_id(default_image.name, default_image.lock.resolved, local)
    assert manifest["patch_set"] == patch_set_id(local.patches)
    assert manifest["vllm"]["version"] == "0.32.0+cpu"
    assert manifest["packages"]["torch"] == "2.13.0+cpu"
    assert manifest["packages"]["arctic-inference"] == "0.1.1"


def test_config_and_labels(default_image: DefaultImage) -> None:
    store = Store(default_image.store)
    image = read_image(store, default_image.outputs.manifest.sha256)
    assert image.entrypoint == ("vllm", "serve")
    assert image.user == "1000:0"
    assert image.volumes == ("/var/cache/vllm",)
    local = default_image.lock.local
    assert local is not None
    labels = {
        "org.opencontainers.image.version": "0.32.0+cpu",
        "org.opencontainers.image.revision": "0.32.0+cpu",
        "kiln.pin": default_image.name,
        "kiln.id": kiln_id(default_image.name, default_image.lock.resolved, local),
        "kiln.patch-set": patch_set_id(local.patches),
    }
    assert labels.items() <= image.labels.items()
    manifest = json.loads(store.blobs.read(image.manifest.sha256))
    assert labels.items() <= manifest["annotations"].items()
    # Whoever runs it without a cache mounted finds the folder there, for group 0.
    environment = dict(entry.split("=", 1) for entry in image.env)
    assert environment["HOME"] == "/var/cache/vllm"
    assert "libtcmalloc" in environment["LD_PRELOAD"]
    assert "libiomp5" in environment["LD_PRELOAD"]


def test_bytecode_of_vllm_is_checked_against_its_source_and_fits_it(contents: Contents) -> None:
    """PEP 552: flag 0b11 makes Python compare the hash, so that a hot fix is not ignored."""
    manifest = json.loads(contents.files["etc/kiln/manifest.json"])
    patched = {path.removeprefix("/") for path in manifest["files"]}
    sources = [n for n in contents.files if n.startswith(f"{SITE}/vllm/") and n.endswith(".py")]
    assert patched <= set(sources)
    assert len(sources) > 1000
    for name in sources:
        compiled = contents.files.get(_bytecode(name))
        assert compiled is not None, name
        assert int.from_bytes(compiled[4:8], "little") == 0b11, name
        # The hash is keyed by the magic number of the Python that compiles.
        key = int.from_bytes(compiled[:4], "little")
        assert compiled[8:16] == _imp.source_hash(key, contents.files[name]), name


def _bytecode(source: str) -> str:
    """Where Python 3.11 looks for the bytecode of a source."""
    found = Path(importlib.util.cache_from_source(source))
    return str(found.with_name(f"{Path(source).stem}.cpython-311.pyc"))


def test_the_patched_code_is_what_runs(contents: Contents) -> None:
    """The bytecode under each path is that of the patched file, not of the wheel's."""
    compiled = {
        name: contents.files[_bytecode(f"{SITE}/vllm/{name}")]
        for name in (
            "config/speculative.py",
            "engine/arg_utils.py",
            "entrypoints/serve/instrumentator/metrics.py",
        )
    }
    assert b"_kiln_p70" in compiled["config/speculative.py"]
    assert b"_kiln_p75" in compiled["config/speculative.py"]
    assert b"require_speculation" in compiled["engine/arg_utils.py"]
    assert b"_kiln" in compiled["entrypoints/serve/instrumentator/metrics.py"]


def test_the_patch_layer_is_small_and_holds_only_what_changed(
    default_image: DefaultImage, contents: Contents
) -> None:
    (layer,) = [each for each in default_image.outputs.layers if each.name == "patches"]
    assert layer.digest.size < 2_000_000
    manifest = json.loads(contents.files["etc/kiln/manifest.json"])
    patched = {path.removeprefix("/") for path in manifest["files"]}
    record = f"{SITE}/vllm-0.32.0+cpu.dist-info/RECORD"
    found = {member.name for member in contents.members["patches"] if not member.isdir()}
    assert found == patched | {_bytecode(name) for name in patched} | {record}
    lines = contents.files[record].decode().splitlines()
    for name in patched:
        assert any(line.startswith(f"{name.removeprefix(SITE + '/')},sha256=") for line in lines)
