"""The store as an OCI image layout: oci-layout and index.json beside its blobs.

image-layout.md of the image spec. index.json lists the images built here, each pin
once, by name; it is a convenience for other tools (`skopeo copy oci:STORE:PIN ...`),
never what Kiln itself goes by.
"""

from __future__ import annotations

import fcntl
import os

import msgspec

from kiln.canonical import JSON, Digest, dumps
from kiln.image.oci import INDEX, MANIFEST
from kiln.store import Store

_NAME = "org.opencontainers.image.ref.name"


def name_image(store: Store, pin: str, manifest: Digest) -> None:
    """Have index.json say that `pin` is this manifest. Nothing is written if it does."""
    path = store.root / "index.json"
    with (store.root / "index.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = path.read_bytes() if path.exists() else b"{}"
        entries: dict[str, dict[str, JSON]] = {
            entry["annotations"][_NAME]: entry
            for entry in msgspec.json.decode(old).get("manifests", [])
        }
        entries[pin] = {
            "mediaType": MANIFEST,
            "digest": str(manifest),
            "size": manifest.size,
            "annotations": {_NAME: pin},
        }
        new = dumps(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": [entries[name] for name in sorted(entries)],
            }
        )
        if new == old:
            return
        (store.root / "oci-layout").write_bytes(dumps({"imageLayoutVersion": "1.0.0"}))
        temporary = store.root / "index.json.new"
        temporary.write_bytes(new)
        os.replace(temporary, path)
