"""SERIES: what each patch makes of each file, found by applying them to the locked wheel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kiln.canonical import JSON, Digest, dumps
from kiln.graph.action import Context, Graph, Input, Node
from kiln.graph.build import Fetcher, build
from kiln.graph.steps import SERIES
from kiln.image.sources import patch_inputs, vllm_wheel
from kiln.lock.model import LockedPatch, Resolved
from kiln.pins.model import Pin
from kiln.pins.patch import PatchFile, RetireWhen
from kiln.progress import Reporter
from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel
from kiln.store import Store


class _Patch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A patch but for its bytes: `PatchFile`."""

    id: str
    file: str
    counters: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    retire_when: tuple[RetireWhen, ...] = ()


class _Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """filename: of the wheel. patches: in order."""

    filename: str
    patches: tuple[_Patch, ...]


def run(context: Context) -> Mapping[str, Digest]:
    """Inputs "wheel" and "patch:<id>"; output "out": the locked series as canonical JSON."""
    params = msgspec.convert(context.params, _Params)
    wheel = Wheel(context.path("wheel"), params.filename)
    series = [
        PatchFile(
            patch.id,
            context.path(f"patch:{patch.id}").read_bytes(),
            patch.file,
            patch.counters,
            patch.leave_out,
            patch.retire_when,
        )
        for patch in params.patches
    ]
    applied = patch_wheel(wheel, series)
    plain = [msgspec.to_builtins(patch) for patch in applied.patches]
    return {"out": context.store.blobs.put(dumps(plain))}


def find_series(
    name: str,
    pin: Pin,
    resolved: Resolved,
    series: Sequence[PatchFile],
    store: Store,
    fetcher: Fetcher,
    reporter: Reporter,
) -> tuple[LockedPatch, ...]:
    """The series of a pin with each file's image before and after."""
    vllm, nodes = vllm_wheel(pin, resolved)
    inputs: dict[str, Input] = {"wheel": vllm.input, **patch_inputs(series)}
    patches: list[JSON] = [
        msgspec.to_builtins(_Patch(p.id, p.file, p.counters, p.leave_out, p.retire_when))
        for p in series
    ]
    params: dict[str, JSON] = {"filename": vllm.filename, "patches": patches}
    goal = f"series:{name}"
    graph = Graph([*nodes, Node(goal, SERIES, inputs, params, vllm.size)])
    result = build(store, graph, goal, fetcher, reporter)[goal]["out"]
    return msgspec.json.decode(store.blobs.read(result.sha256), type=tuple[LockedPatch, ...])
