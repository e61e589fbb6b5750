"""Images for `docker load`: one archive that old and new engines both take.

Old engines (20.10) read manifest.json, the format of `docker save`; new ones read the OCI
image layout beside it (image-layout.md). Both point to the same blobs, which go straight
from the store into the stream as they are: gzip layers stay gzip, no staging folder, and
the same image under the same name is the same bytes.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from kiln.canonical import JSON, dumps
from kiln.errors import BadInput, CannotHere
from kiln.image.oci import INDEX, MANIFEST
from kiln.image.read import Image
from kiln.progress import Reporter
from kiln.run.engine import Engine, engine_errors
from kiln.source.tar import EPOCH
from kiln.store import Store
from kiln.store.blobs import CHUNK

# A repository and a tag, as docker's reference grammar has them (without a host's port).
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_ZSTD_ENGINE = 23  # the first major version that unpacks zstd layers
_SECONDS = 1800  # an engine has the whole archive before it unpacks, and is silent until then


def default_name(image: Image) -> str:
    """kiln/<pin>:<start of the manifest's digest>: a label that cannot be wrong."""
    pin = image.labels.get("kiln.pin", "image")
    return f"kiln/{pin.lower()}:{image.manifest.sha256[:12]}"


def write_archive(store: Store, image: Image, name: str, out: BinaryIO) -> None:
    """Write the archive to a file. Raises BadInput("run.bad-name")."""
    for piece in archive(store, image, name):
        out.write(piece)


def archive(store: Store, image: Image, name: str) -> Iterator[bytes]:
    """The archive in pieces. name: repository:tag, a label only."""
    repository, _, tag = name.rpartition(":")
    if not (_NAME.fullmatch(repository) and _TAG.fullmatch(tag)):
        raise BadInput(
            "run.bad-name",
            f"{name!r} is no name for an image",
            why="expected repository:tag, the repository in lower case",
        )
    return _archive(store, image, name)


def _archive(store: Store, image: Image, name: str) -> Iterator[bytes]:
    tag = name.rpartition(":")[2]
    descriptor: dict[str, JSON] = {
        "mediaType": MANIFEST,
        "digest": str(image.manifest),
        "size": image.manifest.size,
        "annotations": {
            "io.containerd.image.name": f"docker.io/{name}",
            "org.opencontainers.image.ref.name": tag,
        },
    }
    index: dict[str, JSON] = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
    saved: list[JSON] = [
        {
            "Config": _blob(image.config.sha256),
            "RepoTags": [name],
            "Layers": [_blob(layer.digest.sha256) for layer in image.layers],
        }
    ]
    layers = {layer.digest for layer in image.layers}
    yield _header("blobs/", 0) + _header("blobs/sha256/", 0)
    # Documents first, so that an engine can refuse before gigabytes have gone by.
    for digest in [image.manifest, image.config, *sorted(layers - {image.config})]:
        yield _header(_blob(digest.sha256), digest.size)
        with store.blobs.open(digest.sha256) as file:
            while piece := file.read(CHUNK):
                yield piece
        yield bytes(-digest.size % tarfile.BLOCKSIZE)
    documents = {
        "index.json": dumps(index),
        "manifest.json": dumps(saved),
        "oci-layout": dumps({"imageLayoutVersion": "1.0.0"}),
    }
    for path, data in documents.items():
        yield _header(path, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _blob(sha: str) -> str:
    return f"blobs/sha256/{sha}"


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path.rstrip("/"))
    if path.endswith("/"):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    info.size, info.mtime = size, EPOCH
    return info.tobuf(tarfile.PAX_FORMAT)


def load(store: Store, image: Image, engine: Engine, name: str, reporter: Reporter) -> str:
    """Load the image into an engine; returns what the engine confirms (`Engine.confirms`).

    name: repository:tag, a label only. Raises CannotHere with run.zstd-engine (R13),
    run.load-refused, run.engine-call or run.engine-digest.
    """
    major = engine.version.partition(".")[0]
    zstd = any(layer.compression == "zstd" for layer in image.layers)
    if zstd and major.isdecimal() and int(major) < _ZSTD_ENGINE:
        raise CannotHere(
            "run.zstd-engine",
            f"engine {engine.version} cannot unpack zstd layers",
            where=str(image),
            fix=f"use an engine of version {_ZSTD_ENGINE} or later, or pin `compression: gzip`",
        )
    total = sum(layer.digest.size for layer in image.layers)

    def counted() -> Iterator[bytes]:
        for piece in archive(store, image, name):
            task.advance(len(piece))
            yield piece

    with reporter.task(f"load {name} into the engine", total) as task:
        _send(engine, counted())
    with engine_errors():
        found = engine.find(image)
        if found is None:
            found = engine.client.images.get(name).id or "nothing"
    return engine.confirms(found, image)


def _send(engine: Engine, pieces: Iterator[bytes]) -> None:
    from docker.errors import DockerException, ImageLoadError
    from requests.exceptions import RequestException

    api = engine.client.api
    usual, api.timeout = api.timeout, _SECONDS
    try:
        for line in api.load_image(pieces, quiet=True) or ():  # type: ignore[no-untyped-call]
            if isinstance(line, dict) and "error" in line:
                raise ImageLoadError(line["error"])
    except (DockerException, RequestException) as error:
        raise CannotHere(
            "run.load-refused",
            "the engine did not take the image",
            where=f"engine {engine.version}",
            why=str(error),
            fix="see the engine's own log; --runner bundle needs no engine",
        ) from error
    finally:
        api.timeout = usual
