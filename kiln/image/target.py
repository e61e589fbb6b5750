"""What a person names: a pin, or the digest of a built image."""

from __future__ import annotations

from dataclasses import dataclass

from kiln.canonical import is_sha256
from kiln.errors import BadInput
from kiln.image.prepare import read_pin_lock
from kiln.image.read import Image, read_image
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Lock, Outputs
from kiln.pins.load import Project
from kiln.pins.model import Pin
from kiln.store import Store


@dataclass(frozen=True)
class Target:
    """A pin whose image was built, with its lock."""

    name: str
    pin: Pin
    lock: Lock
    outputs: Outputs


def find_target(project: Project, text: str | None) -> Target:
    """The pin of a name (None: the default) or of its image's digest.

    Raises BadInput "target.not-built", "target.unknown-digest", "pins.unknown-pin", and
    what is wrong with the lock.
    """
    sha = (text or "").removeprefix("sha256:")
    if text is not None and text not in project.pins.pins and is_sha256(sha):
        return _by_digest(project, sha)
    name = text or project.pins.default
    pin = project.pin(name)
    lock = read_pin_lock(project, name, pin)
    if lock.outputs is None:
        raise BadInput(
            "target.not-built",
            f"the image of {name!r} was never built",
            where=str(locks_path(project.root, name).relative_to(project.root)),
            fix=f"run `kiln build {name}`",
        )
    return Target(name, pin, lock, lock.outputs)


def read_target(target: Target, store: Store) -> Image:
    """The target's image. Raises BadInput("target.not-here") where this store lacks it."""
    outputs = target.outputs
    blobs = [outputs.manifest, outputs.config, *(layer.digest for layer in outputs.layers)]
    missing = [blob for blob in blobs if not store.blobs.has(blob)]
    if missing:
        raise BadInput(
            "target.not-here",
            f"the image of {target.name!r} is not in this store",
            where=str(store.root),
            why=f"{len(missing)} of {len(blobs)} blobs are missing, first {missing[0]}",
            fix=f"run `kiln build {target.name}`; it gives the digest that the lock knows",
        )
    return read_image(store, outputs.manifest.sha256)


def _by_digest(project: Project, sha: str) -> Target:
    for name, pin in project.pins.pins.items():
        path = locks_path(project.root, name)
        lock = read_lock(path) if path.exists() else None
        if lock and lock.outputs and lock.outputs.manifest.sha256 == sha:
            return Target(name, pin, lock, lock.outputs)
    raise BadInput(
        "target.unknown-digest",
        "no lock of this project has that digest",
        where=f"sha256:{sha}",
        fix="`kiln show DIGEST` tells what it is; or check out the commit whose lock has it",
    )
