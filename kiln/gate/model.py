"""What a gate is told, and what it says: what is expected, cases, evidence.

A gate asks a running image and writes down a `Case` for each thing it judged. All
cases of one run are the `Evidence`, which belongs to (digest, preset) and to nothing
else (DESIGN.md, promise 6). A case that could not run is never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from kiln.canonical import dumps

SCHEMA = 1
# Raise it whenever a gate asks or judges otherwise: evidence of other judges is not replayed.
GATES_VERSION = 1

Verdict: TypeAlias = Literal["pass", "fail", "known-bad", "healed", "not-run"]
Overall: TypeAlias = Literal["pass", "fail", "not-run"]

EXIT_CODES: Mapping[Overall, int] = {"pass": 0, "fail": 1, "not-run": 4}


# ---- what is expected ----------------------------------------------------------------------


class Patch(msgspec.Struct, frozen=True, order=True):
    """One patch that must be in the image: its id, and the hash of its .patch file."""

    id: str
    sha256: str


@dataclass(frozen=True)
class Expected:
    """What the lock and the preset say about the image that is judged.

    digest: hex sha256 of the manifest. preset_hash, kiln_id, patch_set: hex. vllm_version,
    torch_version: what they call themselves, "0.32.0+cpu". extensions: the recipe's table
    (see kiln/gate/extensions.py). interpreter: the image's Python. auto_tools: whether the
    preset lets the model choose to call tools (--enable-auto-tool-choice).
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


class Evidence(msgspec.Struct, frozen=True):
    """All that one run of the gates saw of one image under one preset.

    before, after: the identity as it was read before and after the gates; None where it
    could not be read. runner_confirms: what the runner vouches for. complete: whether the
    runner could look inside the image and vouches for its digest; an endpoint's evidence
    is partial. started: ISO date and time, UTC. durations: milliseconds of each gate.
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
    before: Seen | None
    after: Seen | None
    durations: dict[str, int]
    schema: int = SCHEMA

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

    Known-bad and healed cases do not hold an image up, but they stay in the report.
    """
    verdicts = {case.verdict for case in cases}
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
