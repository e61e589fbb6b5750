"""What drift says: verdicts on patches, their files and hunks, with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

State = Literal[
    "OK",
    "OFFSET",
    "MOVED",
    "SUPERSEDED_BY",
    "ALREADY_UPSTREAM",
    "AMBIGUOUS",
    "CONFLICT",
    "MISSING",
    "NO_FILE",
]

# The later, the worse: a file is as bad as its worst hunk, a patch as its worst file.
_ORDER: tuple[State, ...] = (
    "OK",
    "OFFSET",
    "MOVED",
    "SUPERSEDED_BY",
    "ALREADY_UPSTREAM",
    "AMBIGUOUS",
    "CONFLICT",
    "MISSING",
    "NO_FILE",
)


class HunkDrift(msgspec.Struct, frozen=True):
    """One hunk. line: of its header in the .patch. at: the line (from 1) at which it stands
    or would fit, 0 where there is none. offset: by how many lines that is not where it
    should be. reason: for people, of several lines where the hunk is shown beside the
    source. after: patches before it that do not fit themselves, and whose lines it needs.
    """

    line: int
    state: State
    at: int = 0
    offset: int = 0
    reason: str = ""
    after: tuple[str, ...] = ()


class FileDrift(msgspec.Struct, frozen=True):
    """One file of a patch. moved_to: where it was looked at instead ("" = at `path`).
    after: as for hunks."""

    path: str
    state: State
    reason: str = ""
    moved_to: str = ""
    hunks: tuple[HunkDrift, ...] = ()
    after: tuple[str, ...] = ()


class Own(msgspec.Struct, frozen=True):
    """What a patch has for the target's version. file: "" where there is none. fits: put
    onto the target behind the others' files for it. reason: why not."""

    file: str = ""
    fits: bool = False
    reason: str = ""


class PatchDrift(msgspec.Struct, frozen=True):
    """One patch. file: the .patch that was judged. retired: upstream has all of it, or
    something in its place. target: what it has for the target's version. waits: somebody
    has to do something. left_out: files of the .patch that no wheel has, as patch.yaml says.
    """

    id: str
    state: State
    file: str = ""
    reason: str = ""
    files: tuple[FileDrift, ...] = ()
    retired: bool = False
    target: Own = Own()
    waits: bool = False
    left_out: tuple[str, ...] = ()


def worst(states: Iterable[State]) -> State:
    """The worst of some states; OK of none."""
    return max(states, key=_ORDER.index, default="OK")
