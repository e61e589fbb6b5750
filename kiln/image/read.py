"""Reading an image that lies in the store: manifest and config, checked.

Image spec v1.1, manifest.md and config.md. Where an image came from does not matter
here: both documents are read as hostile, and what they name must be in the store with
the size they say. Layers are not read: whoever unpacks one checks its diffID.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from kiln.canonical import Digest, is_sha256
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.image.oci import CONFIG, INDEX, MANIFEST
from kiln.store import Store

Compression = Literal["", "gzip", "zstd"]
MAX_DOCUMENT = 4 << 20  # bytes; registries take no larger manifest either

_DOCKER = "application/vnd.docker"
_MANIFESTS = (MANIFEST, f"{_DOCKER}.distribution.manifest.v2+json")
_INDEXES = (INDEX, f"{_DOCKER}.distribution.manifest.list.v2+json")
_CONFIGS = (CONFIG, f"{_DOCKER}.container.image.v1+json")
_LAYERS: dict[str, Compression] = {
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    f"{_DOCKER}.image.rootfs.diff.tar": "",
    f"{_DOCKER}.image.rootfs.diff.tar.gzip": "gzip",
}


@dataclass(frozen=True)
class ImageLayer:
    """One layer. digest: of its blob. diff_id: hex sha256 of the tar inside."""

    digest: Digest
    diff_id: str
    compression: Compression


@dataclass(frozen=True)
class Image:
    """An image of the store. `str()` is its identity, the manifest's digest.

    user: as the config says it, "uid:gid", a name, or "" (root). volumes: absolute
    paths that the image expects to be writable.
    """

    manifest: Digest
    config: Digest
    layers: tuple[ImageLayer, ...]
    architecture: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    user: str = ""
    workdir: str = "/"
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.manifest)


class _Descriptor(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType")
    digest: str
    size: int
    urls: list[str] | None = None


class _Manifest(msgspec.Struct):
    schema: int = msgspec.field(name="schemaVersion")
    config: _Descriptor
    layers: list[_Descriptor]


class _Kind(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType", default=MANIFEST)


class _Runtime(msgspec.Struct, rename="pascal"):
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    env: list[str] | None = None
    user: str | None = None
    working_dir: str | None = None
    volumes: dict[str, object] | None = None
    labels: dict[str, str] | None = None


class _RootFs(msgspec.Struct):
    type: str
    diff_ids: list[str]


class _Config(msgspec.Struct):
    architecture: str
    os: str
    rootfs: _RootFs
    config: _Runtime | None = None


_T = TypeVar("_T")


def read_image(store: Store, manifest_sha: str) -> Image:
    """The image whose manifest has this hex sha256.

    Raises Damaged where the store lacks or garbles a document, and BadInput with codes
    image.too-large, image.not-json, image.index, image.media-type, image.digest,
    image.size, image.foreign-layer, image.layer-count, image.os, image.bad-config.
    """
    raw = _document(store, manifest_sha)
    kind = _decode(raw, _Kind, manifest_sha).media_type
    if kind in _INDEXES:
        raise _bad(
            "index",
            manifest_sha,
            "this is an index of images, not one image",
            kind,
            fix="name the digest of one platform's manifest",
        )
    if kind not in _MANIFESTS:
        raise _bad("media-type", manifest_sha, "this is no image manifest", kind)
    manifest = _decode(raw, _Manifest, manifest_sha)
    problems: list[KilnError] = []
    if manifest.schema != 2:
        problems.append(
            _bad("media-type", manifest_sha, "schemaVersion is not 2", str(manifest.schema))
        )
    config_digest = _descriptor(store, manifest.config, _CONFIGS, manifest_sha, problems)
    blobs = [_descriptor(store, d, tuple(_LAYERS), manifest_sha, problems) for d in manifest.layers]
    raise_problems(problems)
    assert config_digest is not None

    config_raw = _document(store, config_digest.sha256)
    config = _decode(config_raw, _Config, config_digest.sha256)
    runtime = config.config or _Runtime()
    problems = list(_check_config(config, runtime, len(blobs), config_digest.sha256))
    raise_problems(problems)
    return Image(
        manifest=Digest(manifest_sha, len(raw)),
        config=config_digest,
        layers=tuple(
            ImageLayer(blob, diff_id.removeprefix("sha256:"), _LAYERS[descriptor.media_type])
            for blob, diff_id, descriptor in zip(
                blobs, config.rootfs.diff_ids, manifest.layers, strict=True
            )
            if blob is not None
        ),
        architecture=config.architecture,
        entrypoint=tuple(runtime.entrypoint or ()),
        command=tuple(runtime.cmd or ()),
        env=tuple(runtime.env or ()),
        user=runtime.user or "",
        workdir=runtime.working_dir or "/",
        volumes=tuple(sorted(runtime.volumes or ())),
        labels=dict(runtime.labels or {}),
    )


def _bad(reason: str, sha: str, what: str, why: str = "", fix: str = "") -> BadInput:
    return BadInput(f"image.{reason}", what, where=f"sha256:{sha}", why=why, fix=fix)


def _document(store: Store, sha: str) -> bytes:
    size = store.blobs.path(sha).stat().st_size
    if size > MAX_DOCUMENT:
        raise _bad("too-large", sha, "a manifest or config is larger than 4 MiB", f"{size} bytes")
    return store.blobs.read(sha)


def _decode(raw: bytes, kind: type[_T], sha: str) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise _bad(
            "not-json", sha, "the document is not what the image spec says", str(error)
        ) from error


def _descriptor(
    store: Store,
    descriptor: _Descriptor,
    types: tuple[str, ...],
    sha: str,
    problems: list[KilnError],
) -> Digest | None:
    """The digest that a descriptor names, or None and a problem."""
    name, _, found = descriptor.digest.partition(":")
    if name != "sha256" or not is_sha256(found):
        problems.append(_bad("digest", sha, f"not a sha256 digest: {descriptor.digest!r}"))
        return None
    if (
        descriptor.urls
        or "foreign" in descriptor.media_type
        or "nondistributable" in descriptor.media_type
    ):
        problems.append(
            _bad(
                "foreign-layer",
                sha,
                "a layer is to be had from somewhere else only",
                f"{descriptor.digest} {descriptor.media_type}",
            )
        )
        return None
    if descriptor.media_type not in types:
        problems.append(
            _bad(
                "media-type",
                sha,
                f"unknown media type {descriptor.media_type!r}",
                f"of {descriptor.digest}; known: {', '.join(types)}",
            )
        )
        return None
    size = store.blobs.path(found).stat().st_size
    if size != descriptor.size:
        problems.append(
            _bad(
                "size",
                sha,
                f"{descriptor.digest} has another size than the manifest says",
                f"manifest: {descriptor.size}, blob: {size} bytes",
            )
        )
        return None
    return Digest(found, size)


def _check_config(config: _Config, runtime: _Runtime, layers: int, sha: str) -> list[KilnError]:
    problems: list[KilnError] = []
    if config.os != "linux":
        problems.append(_bad("os", sha, f"an image for {config.os!r}, not linux"))
    diff_ids = config.rootfs.diff_ids
    if config.rootfs.type != "layers" or len(diff_ids) != layers:
        problems.append(
            _bad(
                "layer-count",
                sha,
                "config and manifest disagree on the layers",
                f"config: {len(diff_ids)} {config.rootfs.type}, manifest: {layers}",
            )
        )
    problems += [
        _bad("digest", sha, f"not a sha256 digest: {d!r}")
        for d in diff_ids
        if not (d.startswith("sha256:") and is_sha256(d[7:]))
    ]
    texts = [
        *(runtime.entrypoint or ()),
        *(runtime.cmd or ()),
        *(runtime.env or ()),
        runtime.user or "",
        runtime.working_dir or "",
        *(runtime.volumes or ()),
    ]
    if any("\0" in text for text in texts):
        problems.append(_bad("bad-config", sha, "the config holds a NUL character"))
    problems += [
        _bad("bad-config", sha, f"environment entry {text!r} is not NAME=value")
        for text in runtime.env or ()
        if text.find("=") < 1
    ]
    problems += [
        _bad("bad-config", sha, f"{path!r} is not a plain absolute path")
        for path in [runtime.working_dir or "/", *(runtime.volumes or ())]
        if not path.startswith("/") or ".." in path.split("/")
    ]
    return problems
