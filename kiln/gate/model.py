"""What a gate is told, and what it says: what is expected, cases, evidence.

A gate asks a running image and writes down a `Case` for each thing it judged. All
cases of one run are the `Evidence`, which belongs to (digest, preset) and to nothing
else (DESIGN.md, promise 6). A case that could not run is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from kiln.canonical import dumps
from kiln.pins.model import DEFAULT_LAUNCH
from kiln.pins.patch import Proof

SCHEMA = 2
# Raise it whenever a gate asks or judges otherwise: evidence of other judges is not replayed.
GATES_VERSION = 2

Verdict: TypeAlias = Literal["pass", "fail", "known-bad", "healed", "unproven", "not-run"]
Overall: TypeAlias = Literal["pass", "fail", "not-run"]

EXIT_CODES: Mapping[Overall, int] = {"pass": 0, "fail": 1, "not-run": 4}


# ---- what is expected ----------------------------------------------------------------------


class Patch(msgspec.Struct, frozen=True, order=True):
    """One patch that must be in the image: its id, and the hash of its .patch file."""

    id: str
    sha256: str


@dataclass(frozen=True, order=True)
class Work:
    """A workload (kiln/gate/workloads.py) at a temperature."""

    workload: str
    temperature: float = 0

    def __str__(self) -> str:
        return f"{self.workload}@{self.temperature:g}"


@dataclass(frozen=True)
class LaunchPlan:
    """One way in which the image is started, and what is looked at there.

    args, env: what it adds to the preset's. speculates: whether the command line asks for
    speculation. works: what it is asked. proofs: patch -> its proofs here. model: the gates'
    model, "" for the preset's.
    """

    name: str = DEFAULT_LAUNCH
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    speculates: bool = False
    works: tuple[Work, ...] = ()
    proofs: Mapping[str, tuple[Proof, ...]] = field(default_factory=dict)
    model: str = ""

    def case(self, what: str) -> str:
        """The id of a case about this start as such: "smoke/stop", "launch/ngram/stop"."""
        return f"smoke/{what}" if self.name == DEFAULT_LAUNCH else f"launch/{self.name}/{what}"


@dataclass(frozen=True)
class Expected:
    """What the lock and the preset say about the image that is judged.

    digest: hex sha256 of the manifest. preset_hash, kiln_id, patch_set: hex. vllm_version,
    torch_version: what they call themselves, "0.32.0+cpu". extensions: the recipe's table
    (see kiln/gate/extensions.py). interpreter: the image's Python. auto_tools: whether the
    preset lets the model choose to call tools (--enable-auto-tool-choice). launches: what
    to start, in this order; whole: these are all that the pin has. decisions: patch -> those
    that the image declares. unproven: each patch that no launch proves -> its reason, ""
    where it gives none.
    """

    digest: str
    preset: str
    preset_hash: str
    pin: str
    kiln_id: str
    patch_set: str
    vllm_version: str
    torch_version: str
    patches: tuple[Patch, ...]
    extensions: Mapping[str, str]
    interpreter: str
    auto_tools: bool = False
    launches: tuple[LaunchPlan, ...] = (LaunchPlan(),)
    whole: bool = True
    decisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unproven: Mapping[str, str] = field(default_factory=dict)


# ---- what was found ------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong with a reply. code: stable, asserted by tests."""

    code: str
    detail: str


class Case(msgspec.Struct, frozen=True):
    """One thing judged. reason: for people, why the verdict is not a plain pass.

    id: "toolcall/required/stream/plain". detail: what was seen. replies: sha256 of the
    blobs with the raw exchanges. problems: the codes of what is wrong, sorted.
    """

    id: str
    gate: str
    verdict: Verdict
    detail: str = ""
    reason: str = ""
    problems: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()


class Seen(msgspec.Struct, frozen=True):
    """What a running server said of itself. patches: sorted."""

    kiln_id: str
    pin: str
    version: str
    patch_set: str
    patches: tuple[Patch, ...]


class Counts(msgspec.Struct, frozen=True):
    """What one reading of /metrics says of patches, in numbers that can be believed.

    decisions: patch -> decision -> how often it was taken. settings: patch -> name -> value.
    drafts, draft_tokens, accepted: vLLM's own, of all engines; None where it shows none.
    """

    decisions: dict[str, dict[str, int]]
    settings: dict[str, dict[str, str]]
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted: int | None = None


class Round(msgspec.Struct, frozen=True):
    """A workload that was run. temperature: as a text, "0.8". tokens: of all answers."""

    workload: str
    temperature: str
    answers: int
    tokens: int
    milliseconds: int
    before: Counts
    after: Counts


class Launched(msgspec.Struct, frozen=True):
    """One start of the image, as it was judged.

    args, env: what it added to the preset's; model: another gates' model, or "". started:
    False where no server got ready.
    before, after: the identity as it was read first and last; None where it could not be.
    runner, proposer: the classes that the server named, "" where it named none or several.
    """

    name: str
    args: tuple[str, ...]
    env: dict[str, str]
    started: bool
    model: str = ""
    before: Seen | None = None
    after: Seen | None = None
    runner: str = ""
    proposer: str = ""
    rounds: tuple[Round, ...] = ()


class Proven(msgspec.Struct, frozen=True):
    """One proof of a patch, held against what a launch showed.

    wanted: decision -> the least count. counted: decision -> how often it was taken while
    the workload ran. settings: as the server showed them. holds: whether all was as the
    proof says; the case proof/<patch>/<launch> says why not.
    """

    patch: str
    launch: str
    workload: str
    temperature: str
    holds: bool
    wanted: dict[str, int]
    counted: dict[str, int]
    settings: dict[str, str]


class Evidence(msgspec.Struct, frozen=True):
    """All that one run of the gates saw of one image under one preset.

    runner_confirms: what the runner vouches for. complete: whether the runner could look
    inside the image and vouches for its digest, and every launch was judged by every gate;
    an endpoint's evidence is partial. started: ISO date and time, UTC. durations:
    milliseconds of each gate and each start.
    """

    digest: str
    preset: str
    preset_hash: str
    pin: str
    kiln_id: str
    runner: str
    runner_confirms: str
    complete: bool
    tool: str
    started: str
    cases: tuple[Case, ...]
    launches: tuple[Launched, ...]
    proofs: tuple[Proven, ...]
    durations: dict[str, int]
    schema: int = SCHEMA

    @property
    def before(self) -> Seen | None:
        """The identity as it was read first of all."""
        return next((launch.before for launch in self.launches if launch.started), None)

    @property
    def after(self) -> Seen | None:
        """The identity as it was read last of all."""
        return next((launch.after for launch in reversed(self.launches) if launch.started), None)

    @property
    def verdict(self) -> Overall:
        """The verdict on the whole."""
        return overall(self.cases)

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 4 not run."""
        return EXIT_CODES[self.verdict]

    def canonical(self) -> bytes:
        """The bytes of its blob."""
        return dumps(self)

    def blobs(self) -> list[str]:
        """The sha256 of every blob that it refers to; a collection keeps them with it."""
        return sorted({sha for case in self.cases for sha in case.replies})


def overall(cases: Sequence[Case]) -> Overall:
    """fail if any case failed; not-run if any did not run, or there is none; else pass.

    Known-bad, healed and unproven cases do not hold an image up, but they stay in the
    report; and what nobody could prove is nothing to pass by.
    """
    verdicts = {case.verdict for case in cases} - {"unproven"}
    if "fail" in verdicts:
        return "fail"
    if "not-run" in verdicts or not verdicts:
        return "not-run"
    return "pass"


def case(
    id: str,
    problems: Sequence[Problem],
    detail: str = "",
    replies: Sequence[str] = (),
) -> Case:
    """A case that passes if nothing is wrong, and fails otherwise."""
    return Case(
        id=id,
        gate=id.split("/")[0],
        verdict="fail" if problems else "pass",
        detail=_clean(detail),
        reason=_clean("; ".join(problem.detail for problem in problems)),
        problems=tuple(sorted({problem.code for problem in problems})),
        replies=tuple(replies),
    )


def _clean(text: str) -> str:
    """Half of a surrogate pair, which JSON can smuggle in, has no UTF-8: escape it."""
    return text.encode("utf-8", "backslashreplace").decode()


def not_run(id: str, reason: str) -> Case:
    """A case that could not be judged; never a pass."""
    return Case(id=id, gate=id.split("/")[0], verdict="not-run", reason=reason)
