"""What an image says of itself: labels, annotations, and /etc/kiln/manifest.json.

An image cannot know its own digest, so it carries `kiln.id`, the hash of its lock's
inputs; lock and registry map that to digests (DESIGN.md, promise 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.canonical import JSON, dumps
from kiln.lock.model import LINK, Local, Resolved, Wheel, kiln_id, patch_set_id
from kiln.pins.model import Pin, Recipe

MANIFEST_PATH = "etc/kiln/manifest.json"


@dataclass(frozen=True)
class Identity:
    """The names under which an image can be recognised from inside and outside.

    id: kiln.id, hex. patch_set: hash of the series, hex. version: what vLLM calls itself.
    commit: of vLLM, "" where unknown.
    """

    pin: str
    id: str
    patch_set: str
    version: str
    commit: str


def identify(name: str, pin: Pin, resolved: Resolved, local: Local) -> Identity:
    """The identity that this pin's image will have."""
    return Identity(
        pin=name,
        id=kiln_id(name, resolved, local),
        patch_set=patch_set_id(local.patches),
        version=pin.vllm.version,
        commit=pin.vllm.commit,
    )


def labels(identity: Identity, recipe: Recipe) -> dict[str, str]:
    """Labels of the config, and annotations of the manifest."""
    return {
        "org.opencontainers.image.title": f"vllm {identity.version} ({recipe.title})",
        "org.opencontainers.image.version": identity.version,
        # The commit where it is known; a version is no commit, but never a guess.
        "org.opencontainers.image.revision": identity.commit or identity.version,
        "kiln.pin": identity.pin,
        "kiln.id": identity.id,
        "kiln.patch-set": identity.patch_set,
    }


def manifest_json(
    identity: Identity,
    local: Local,
    wheels: Sequence[Wheel],
    site: str,
    built: Mapping[str, str],
) -> bytes:
    """/etc/kiln/manifest.json, which vllm/_kiln.py reads when a server starts.

    site: where packages lie, without a leading slash. built: component -> version. Its
    `files` are those that the series as a whole adds or changes, with their sha256: not what
    it deletes, nor links (read through them, they would be other files).
    """
    touched = {file.path: file for patch in local.patches for file in patch.files}
    files = {
        f"/{site}/{file.path}": file.post
        for file in touched.values()
        if file.post and file.mode != LINK
    }
    packages: dict[str, JSON] = {wheel.name: wheel.version for wheel in wheels}
    return dumps(
        {
            "schema": 2,
            "pin": identity.pin,
            "kiln_id": identity.id,
            "patch_set": identity.patch_set,
            "vllm": {"version": identity.version, "commit": identity.commit},
            "packages": {**packages, **built},
            "patches": [
                {"id": p.id, "sha256": p.sha256, "counters": list(p.counters)}
                for p in local.patches
            ],
            "files": files,
        }
    )
