"""OCI media types and the two JSON documents of an image, by the image spec v1.1.

https://github.com/opencontainers/image-spec: config.md, manifest.md, annotations.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kiln.canonical import JSON, Digest, dumps
from kiln.graph.action import Context, Step
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
    """What a layer action says of its blob (its output "meta")."""

    diff_id: str
    tar_size: int
    files: int
    digest: Digest


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


def read_layers(context_inputs: Mapping[str, bytes]) -> tuple[Layer, ...]:
    """Layers from the meta blobs of their actions, by layer name, in order."""
    layers = []
    for name, raw in context_inputs.items():
        meta = msgspec.json.decode(raw, type=LayerMeta)
        layers.append(Layer(name, meta.diff_id, meta.digest, meta.tar_size))
    return tuple(layers)


def _image(context: Context) -> dict[str, Digest]:
    """params: layers (names in order), runtime, annotations, architecture, compression.

    inputs: each layer's "meta" under the layer's name. outputs: "config", "manifest".
    """
    names = context.params["layers"]
    runtime, annotations = context.params["runtime"], context.params["annotations"]
    assert isinstance(names, Sequence) and isinstance(runtime, Mapping)
    assert isinstance(annotations, Mapping)
    metas = {str(n): context.store.blobs.read(context.inputs[str(n)].sha256) for n in names}
    layers = read_layers(metas)
    architecture = str(context.params["architecture"])
    config = context.store.blobs.put(config_bytes(layers, runtime, architecture))
    texts = {key: str(value) for key, value in annotations.items()}
    compression = str(context.params["compression"])
    manifest = context.store.blobs.put(manifest_bytes(layers, config, texts, compression))
    return {"config": config, "manifest": manifest}


IMAGE = Step("image", 1, _image)
