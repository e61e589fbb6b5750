"""Gate a pin's image: find it, its model and a runner; start, judge, or replay.

Evidence belongs to (digest, preset), and a preset is what it says: the evidence of one
whose flags or model, or whose launches or proofs of patches, have changed since is not
replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kiln.canonical import key
from kiln.errors import BadInput
from kiln.gate.evidence import replay
from kiln.gate.model import GATES_VERSION, Evidence, Expected, Patch
from kiln.gate.plan import Plan, plan
from kiln.image.identity import identify
from kiln.image.target import Target, find_target
from kiln.lock.model import Lock
from kiln.lock.request import folder_hash
from kiln.pins.load import Project
from kiln.pins.model import DEFAULT_LAUNCH, Preset
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Judged:
    """A verdict. replayed: it comes from earlier evidence; nothing was started."""

    pin: str
    evidence: Evidence
    replayed: bool

    @property
    def digest(self) -> str:
        """The image's."""
        return f"sha256:{self.evidence.digest}"

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 4 not run."""
        return self.evidence.exit_code


def gate_target(
    project: Project,
    target: str | None,
    store: Store,
    reporter: Reporter,
    *,
    preset: str = "default",
    runner: str = "auto",
    model: str = "",
    launches: Sequence[str] = (),
    again: bool = False,
) -> Judged:
    """Judge the image of a pin or digest under a preset.

    runner: "auto", "docker", "bundle" or "endpoint=URL". model: which of an endpoint's.
    launches: names of some, for a part of the run; none means all. An endpoint is judged as
    one launch, the default one if none is named.
    Raises BadInput for what is not there, CannotHere where this machine cannot start it,
    JudgedBad where it does not start.
    """
    found = find_target(project, target)
    chosen = found.pin.presets.get(preset)
    if chosen is None:
        raise BadInput(
            "gate.no-preset",
            f"pin {found.name!r} has no preset {preset!r}",
            where=project.where("pins", found.name),
            why=f"it has: {', '.join(found.pin.presets) or 'none'}",
            fix="add one under `presets`, or name one that is there with --preset",
        )
    endpoint = runner.startswith("endpoint=")
    if endpoint and len(launches) > 1:
        raise BadInput(
            "gate.one-launch",
            "an endpoint was started in one way",
            why=f"launches: {', '.join(launches)}",
            fix="name the launch that it is",
        )
    if endpoint and not launches:
        launches = [DEFAULT_LAUNCH]
    expected = expect(project, found, preset, chosen, launches)
    if not again and not launches:
        old = replay(store, expected.digest, preset, lambda e: _still_holds(e, expected))
        if old is not None:
            return Judged(found.name, old, replayed=True)
    # Imported here: a replay starts nothing.
    from kiln.gate.start import start_and_judge

    evidence = start_and_judge(project, found, chosen, expected, runner, model, store, reporter)
    return Judged(found.name, evidence, replayed=False)


def expect(
    project: Project, found: Target, name: str, preset: Preset, launches: Sequence[str] = ()
) -> Expected:
    """What lock, recipe, preset (of this name) and patches say about the image that is
    judged. launches: those chosen; none means all. Raises as `plan` does."""
    planned = plan(project, found.name, preset, launches)
    recipe = project.recipe(found.pin.recipe)
    local = found.lock.local
    assert local is not None, "outputs without a local part are never written"
    identity = identify(found.name, found.pin, found.lock.resolved, local)
    return Expected(
        digest=found.outputs.manifest.sha256,
        preset=name,
        preset_hash=_preset_hash(project, found.lock, preset, planned),
        pin=found.name,
        kiln_id=identity.id,
        patch_set=identity.patch_set,
        vllm_version=identity.version,
        torch_version=found.pin.torch.version,
        patches=tuple(sorted(Patch(p.id, p.sha256) for p in local.patches)),
        extensions=recipe.extensions,
        interpreter=recipe.python.interpreter if recipe.python else "",
        auto_tools="--enable-auto-tool-choice" in preset.args,
        launches=planned.launches,
        whole=planned.whole,
        decisions={patch.id: patch.counters for patch in local.patches},
        unproven=planned.unproven,
    )


def _preset_hash(project: Project, lock: Lock, preset: Preset, planned: Plan) -> str:
    """Over the preset and its launches, what their models are made from, the patches' proofs,
    and the judges."""
    models = {preset.model, *(each.model for each in planned.launches if each.model)}
    return key(
        {
            "preset": msgspec.to_builtins(preset),
            "launches": planned.hash,
            "models": {
                model: [
                    msgspec.to_builtins(lock.resolved.closures[f"model/{model}"]),
                    folder_hash(project.root / "build" / "models" / model),
                ]
                for model in sorted(models)
            },
            "gates": GATES_VERSION,
        }
    )


def _still_holds(old: Evidence, expected: Expected) -> bool:
    """Whether evidence may be replayed: whole, of this preset, and with a verdict."""
    return old.complete and old.preset_hash == expected.preset_hash and old.verdict != "not-run"
