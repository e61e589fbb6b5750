"""The local part of a lock: hashes of what lies in the repository, and of this code.

The series is special: what each patch makes of each file is known only by applying it,
to the locked wheel. That is an action of its own (SERIES), so it happens once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kiln.canonical import Digest, digest, dumps, key
from kiln.graph.action import Context, Graph, Input, Node, Step
from kiln.graph.build import Fetcher, build
from kiln.image.sources import patch_inputs, vllm_wheel
from kiln.image.steps import versions
from kiln.layer.encode import ENCODER
from kiln.lock.model import Local, Lock, LockedPatch
from kiln.lock.request import made_hashes
from kiln.pins.load import Project
from kiln.pins.model import Pin
from kiln.pins.patch import PatchFile, read_series
from kiln.progress import Reporter
from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel
from kiln.store import Store


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    filename: str
    ids: tuple[str, ...]


def _series(context: Context) -> Mapping[str, Digest]:
    """inputs: "wheel", and "patch:<id>" for each of params.ids; output: the locked series."""
    params = msgspec.convert(context.params, _Params)
    wheel = Wheel(context.path("wheel"), params.filename)
    series = [PatchFile(i, context.path(f"patch:{i}").read_bytes()) for i in params.ids]
    applied = patch_wheel(wheel, series)
    plain = [msgspec.to_builtins(patch) for patch in applied.patches]
    return {"out": context.store.blobs.put(dumps(plain))}


SERIES = Step("series", 1, _series)


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
    today = [(file.id, digest(file.data).sha256) for file in files]
    if lock.local is not None and [(p.id, p.sha256) for p in lock.local.patches] == today:
        return lock.local.patches
    if not files:
        return ()
    if fetcher is None:
        return tuple(LockedPatch(patch, sha, ()) for patch, sha in today)
    vllm, nodes = vllm_wheel(pin, lock.resolved)
    inputs: dict[str, Input] = {"wheel": vllm.input, **patch_inputs(files)}
    params = {"filename": vllm.filename, "ids": [file.id for file in files]}
    goal = f"series:{name}"
    graph = Graph([*nodes, Node(goal, SERIES, inputs, params, vllm.size)])
    result = build(store, graph, goal, fetcher, reporter)[goal]["out"]
    raw = store.blobs.read(result.sha256)
    return msgspec.json.decode(raw, type=tuple[LockedPatch, ...])


def local_part(project: Project, pin: Pin, series: tuple[LockedPatch, ...]) -> Local:
    """Today's local part."""
    return Local(
        recipe=key(msgspec.to_builtins(project.recipe(pin.recipe))),
        components=made_hashes(project, pin),
        patches=series,
        steps=versions(),
        encoder=ENCODER,
    )
