"""A refresh under way: what is to be moved, and what came of it; kept in the work tree."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

import msgspec

from kiln.authoring.work import State, Work

_FILE = "refresh.json"


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of one patch.

    state: OK (same lines), OFFSET (same lines elsewhere), MERGED (git merged it; what stands
    around it has changed), SOLVED (a person did), KEPT (had a file for this version),
    UPSTREAM (nothing is left of it), RETIRED, SKIPPED. detail: for people, a line a file.
    """

    state: str
    detail: str = ""


GONE = ("UPSTREAM", "RETIRED", "SKIPPED")  # states of patches that have no commit


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One patch to be picked. commit: of the old series, or (kept) of its own file's."""

    id: str
    commit: str
    kept: bool = False


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refresh. made: its folder was made for it. before: of a work tree that was there,
    its commit and state. picking: the patch that a person has to solve now."""

    source: str
    target: str
    moves: tuple[Move, ...]
    results: dict[str, Moved]
    made: bool
    before: str = ""
    state: State | None = None
    picking: str = ""

    @property
    def waiting(self) -> tuple[Move, ...]:
        """What is still to be picked."""
        return tuple(move for move in self.moves if move.id not in self.results)

    def done(self, patch: str, state: str, detail: str = "") -> Plan:
        """The plan with one more result."""
        results = {**self.results, patch: Moved(state, detail)}
        return msgspec.structs.replace(self, results=results, picking="")


def read_plan(work: Work) -> Plan | None:
    """The refresh that the work tree is in, or was made by."""
    try:
        data = (work.kept / _FILE).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Plan)


def write_plan(work: Work, plan: Plan | None) -> None:
    """Keep the plan, whole, or (None) forget it."""
    if plan is None:
        (work.kept / _FILE).unlink(missing_ok=True)
        return
    handle, name = tempfile.mkstemp(prefix="refresh-", dir=work.kept)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")
    os.replace(name, work.kept / _FILE)


def waiting(work: Work) -> tuple[str, ...]:
    """The patches that a refresh has still to move."""
    plan = read_plan(work)
    return tuple(move.id for move in plan.waiting) if plan else ()


def gone(work: Work) -> frozenset[str]:
    """The patches of which a refresh has found that they have no place in this version."""
    plan = read_plan(work)
    results: Iterable[tuple[str, Moved]] = plan.results.items() if plan else ()
    return frozenset(patch for patch, moved in results if moved.state in GONE)
