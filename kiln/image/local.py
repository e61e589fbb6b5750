"""The local part of a lock: hashes of what lies in the repository, and of this code."""

from __future__ import annotations

import msgspec

from kiln.canonical import sha256
from kiln.graph.build import Fetcher
from kiln.graph.steps import versions
from kiln.layer.encode import ENCODER
from kiln.lock.model import Local, Lock, LockedPatch
from kiln.lock.request import made_hashes
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe
from kiln.pins.patch import read_series
from kiln.progress import Reporter
from kiln.store import Store


def local_series(
    project: Project,
    name: str,
    pin: Pin,
    lock: Lock,
    store: Store,
    fetcher: Fetcher | None,
    reporter: Reporter,
) -> tuple[LockedPatch, ...]:
    """The pin's series with each file's image before and after.

    Taken from the lock where its patches are the repository's; otherwise found by
    applying them. Without a fetcher (a plan) an unknown series has no files.
    """
    files = read_series(project, pin.patches, pin.vllm.version)
    today = [
        LockedPatch(file.id, sha256(file.data), (), file.counters, (), file.rules) for file in files
    ]
    if lock.local is not None and [_asked(patch) for patch in lock.local.patches] == today:
        return lock.local.patches
    if not files:
        return ()
    if fetcher is None:
        return tuple(today)
    # Imported here: it is rarely needed, and brings all that reads wheels along.
    from kiln.image.series import find_series

    return find_series(name, pin, lock.resolved, files, store, fetcher, reporter)


def _asked(patch: LockedPatch) -> LockedPatch:
    """What the repository says of a locked patch, without what came of it."""
    return msgspec.structs.replace(patch, files=(), left_out=())


def local_part(project: Project, pin: Pin, series: tuple[LockedPatch, ...]) -> Local:
    """Today's local part."""
    return Local(
        recipe=_recipe_hash(project.recipe(pin.recipe)),
        components=made_hashes(project, pin),
        patches=series,
        steps=versions(),
        encoder=ENCODER,
    )


def _recipe_hash(recipe: Recipe) -> str:
    """Hex sha256 of a recipe. In the order of its keys: groups and layers stand in it."""
    return sha256(msgspec.json.encode(recipe))
