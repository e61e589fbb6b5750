"""What the gates start, and what they look for there: launches of the pin, proofs of patches.

Read from pins.yaml and patches/*/patch.yaml when the gates are run: neither changes the
image, so neither makes a lock stale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kiln.canonical import sha256
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.gate.model import LaunchPlan, Work
from kiln.gate.workloads import WORKLOADS
from kiln.pins.load import Project
from kiln.pins.model import DEFAULT_LAUNCH, LaunchSpec, Pin, Preset
from kiln.pins.patch import Patch, Proof, read_document
from kiln.pins.problems import listed, near
from kiln.pins.yaml import Document

REPEAT = Work("repeat")  # what a launch that speculates is asked in any case


@dataclass(frozen=True)
class Plan:
    """launches: to start, the default one first. whole: these are all. unproven: patches
    that no launch of the pin proves -> why, or "". hash: hex sha256 of all that this was
    made from."""

    launches: tuple[LaunchPlan, ...]
    whole: bool
    unproven: Mapping[str, str]
    hash: str


def plan(project: Project, name: str, preset: Preset, chosen: Sequence[str] = ()) -> Plan:
    """The launches of a pin under a preset. chosen: names of some; none means all.

    Raises BadInput: gate.no-launch, gate.unknown-workload, or what is wrong in a patch.yaml.
    """
    pin = project.pin(name)
    known = [DEFAULT_LAUNCH, *pin.launches]
    for launch in chosen:
        if launch not in known:
            raise BadInput(
                "gate.no-launch",
                f"pin {name!r} has no launch {launch!r}",
                where=project.where("pins", name, "launches"),
                why=f"it has: {', '.join(known)}",
                fix=near(launch, known) or "add it under `launches`, or name one of these",
            )
    documents = {patch: read_document(project, patch) for patch in pin.patches}
    raise_problems([error for document in documents.values() for error in _check(document)])
    patches = {patch: document.value for patch, document in documents.items()}
    names = [launch for launch in known if launch in chosen or not chosen]
    return Plan(
        launches=_launches(pin, preset, patches, names),
        whole=names == known,
        unproven={
            patch: spec.unproven.strip()
            for patch, spec in patches.items()
            if not any(proof.launch in known for proof in spec.proof)
        },
        hash=_hash(pin, patches),
    )


def _launches(
    pin: Pin, preset: Preset, patches: Mapping[str, Patch], names: Sequence[str]
) -> tuple[LaunchPlan, ...]:
    found = []
    for name in names:
        spec = LaunchSpec() if name == DEFAULT_LAUNCH else pin.launches[name]
        proofs = {patch: _proofs_of(each, name) for patch, each in patches.items()}
        proofs = {patch: each for patch, each in proofs.items() if each}
        works = {Work(p.workload, p.temperature) for each in proofs.values() for p in each}
        speculates = asks_for_speculation((*preset.args, *spec.args))
        # Another model's proofs know best what it is to be asked.
        works |= {REPEAT} if speculates and not (works and spec.model) else set()
        found.append(
            LaunchPlan(
                name,
                spec.args,
                spec.env,
                speculates,
                tuple(sorted(works)),
                proofs,
                spec.model or "",
            )
        )
    # The default launch says what the greedy answers of the others have to be.
    if found[0].name == DEFAULT_LAUNCH:
        own = [each for each in found if not each.model]
        greedy = {work for each in own for work in each.works if work.temperature == 0}
        works = greedy | {*found[0].works}
        found[0] = dataclasses.replace(found[0], works=tuple(sorted(works)))
    return tuple(found)


def _proofs_of(patch: Patch, launch: str) -> tuple[Proof, ...]:
    return tuple(proof for proof in patch.proof if proof.launch == launch)


def asks_for_speculation(args: Sequence[str]) -> bool:
    """Whether vLLM's command line asks for speculation: --speculative-config with its dotted
    and shortened forms, -sc, --spec-method and its fellows."""
    flags = (arg.split("=", 1)[0].split(".", 1)[0].replace("_", "-") for arg in args)
    return any(flag == "-sc" or flag.startswith("--spec") for flag in flags)


def _check(document: Document[Patch]) -> list[KilnError]:
    return [
        BadInput(
            "gate.unknown-workload",
            f"there is no workload {proof.workload!r}",
            where=document.where("proof", number, "workload"),
            why=f"there are: {listed(WORKLOADS)}",
            fix=near(proof.workload, WORKLOADS) or "use one of these",
        )
        for number, proof in enumerate(document.value.proof)
        if proof.workload not in WORKLOADS
    ]


def _hash(pin: Pin, patches: Mapping[str, Patch]) -> str:
    proofs = {patch: [spec.proof, spec.unproven] for patch, spec in patches.items()}
    # msgspec's own bytes: a temperature has no canonical form (kiln.canonical).
    return sha256(msgspec.json.encode([pin.launches, proofs], order="deterministic"))
