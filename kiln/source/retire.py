"""Whether a patch has a place in a version at all: its `retire_when` markers.

retired(patch, read)     -> the markers that stand in the source, each with its line
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kiln.errors import BadInput, JudgedBad, KilnError
from kiln.pins.patch import Patch, PatchFile, RetireWhen
from kiln.source.diff import FileDiff


@dataclass(frozen=True)
class Retired:
    """A marker that was found. line: of the file, from 1, where its text begins."""

    rule: RetireWhen
    line: int


def retired(patch: Patch | PatchFile, read: Callable[[str], bytes | None]) -> list[Retired]:
    """The patch's markers that stand in a pristine source.

    read: as for `kiln.source.apply.apply_series`. A file that is not there holds no marker:
    what is gone is not merged.
    """
    found = []
    for rule in patch.retire_when:
        data = read(rule.file)
        at = -1 if data is None else data.find(rule.contains.encode())
        if data is not None and at >= 0:
            found.append(Retired(rule, data.count(b"\n", 0, at) + 1))
    return found


def check_retired(patch: PatchFile, read: Callable[[str], bytes | None]) -> Iterator[KilnError]:
    """ "patch.retired" for each marker found: the pin lists a patch without a place there."""
    for found in retired(patch, read):
        rule = found.rule
        by = f"superseded by {rule.superseded_by}" if rule.superseded_by else "upstream has it"
        yield JudgedBad(
            "patch.retired",
            f"patch {patch.id} has no place in this version: {by}",
            where=f"patches/{patch.id}/patch.yaml",
            why=f"{rule.file}:{found.line} has {rule.contains!r}",
            fix="take the patch out of the pin, and end its range in patch.yaml",
        )


def check_markers(patch: PatchFile, diffs: Iterable[FileDiff]) -> Iterator[KilnError]:
    """ "patch.marker-in-own" for a marker that the patch itself puts into a file: it would
    find itself, and call the patch merged."""
    hunks = [(diff, hunk) for diff in diffs for hunk in diff.hunks]
    for rule in patch.retire_when:
        text = rule.contains.encode()
        for diff, hunk in hunks:
            if text in b"".join(hunk.after) and text not in b"".join(hunk.before):
                yield BadInput(
                    "patch.marker-in-own",
                    f"the patch itself adds {rule.contains!r}, by which it would be retired",
                    where=f"{patch.file or patch.id}:{hunk.line}",
                    why=f"retire_when must name what only upstream's {rule.file} can hold; "
                    f"this is in the patch to {diff.path}",
                    fix="choose another text in patch.yaml",
                )
                break
