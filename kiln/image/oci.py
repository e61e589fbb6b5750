"""OCI media types and the two JSON documents of an image, by the image spec v1.1.

https://github.com/opencontainers/image-spec: config.md, manifest.md, annotations.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kiln.canonical import JSON, Digest, dumps
from kiln.graph.action import Context
from kiln.image.stack import check_stack
from kiln.layer.listing import parse_listing
from kiln.lock.model import Layer

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER_TYPES = {
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
CREATED = "1980-01-01T00:00:00Z"  # the constant time of all layers (kiln.source.tar.EPOCH)


class LayerMeta(msgspec.Struct, frozen=True):
    """What a layer action says of its blob (its output "meta"); sizes in bytes."""

    diff_id: str
    digest: str
    size: int
    tar_size: int
    files: int


def config_bytes(layers: Sequence[Layer], runtime: Mapping[str, JSON], architecture: str) -> bytes:
    """The image config. runtime: the `config` object (Env, Entrypoint, Labels, ...)."""
    return dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "created": CREATED,
            "config": runtime,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{x.diff_id}" for x in layers]},
            "history": [{"created": CREATED, "created_by": f"kiln {x.name}"} for x in layers],
        }
    )


def manifest_bytes(
    layers: Sequence[Layer], config: Digest, annotations: Mapping[str, str], compression: str
) -> bytes:
    """The image manifest."""
    return dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER_TYPES[compression], x.digest) for x in layers],
            "annotations": annotations,
        }
    )


def _descriptor(media_type: str, digest: Digest) -> dict[str, JSON]:
    return {"mediaType": media_type, "digest": str(digest), "size": digest.size}


def read_layers(metas: Mapping[str, bytes]) -> tuple[Layer, ...]:
    """Layers from the meta blobs of their actions, by layer name, in order."""
    layers = []
    for name, raw in metas.items():
        meta = msgspec.json.decode(raw, type=LayerMeta)
        layers.append(Layer(name, meta.diff_id, Digest(meta.digest, meta.size), meta.tar_size))
    return tuple(layers)


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layers: tuple[str, ...]
    runtime: dict[str, Any]
    annotations: dict[str, str]
    architecture: str
    compression: str


def run(context: Context) -> dict[str, Digest]:
    """Inputs: of each layer "meta" as "<name>" and "files" as "files:<name>"; parameters: the
    layers' names in order, and what config and manifest say. Outputs "config", "manifest"."""
    params = msgspec.convert(context.params, _Params)
    blobs, inputs = context.store.blobs, context.inputs
    check_stack({n: parse_listing(blobs.read(inputs[f"files:{n}"].sha256)) for n in params.layers})
    layers = read_layers({name: blobs.read(inputs[name].sha256) for name in params.layers})
    config = blobs.put(config_bytes(layers, params.runtime, params.architecture))
    manifest = blobs.put(manifest_bytes(layers, config, params.annotations, params.compression))
    return {"config": config, "manifest": manifest}
