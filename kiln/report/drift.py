"""Drift for people and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import msgspec

from kiln.drift.compare import SERVED, Drift
from kiln.drift.contracts import Change, Contract
from kiln.drift.model import FileDrift, Own, PatchDrift
from kiln.drift.symbols import Finding
from kiln.pins.problems import printable

_LISTED = 20  # changes of one contract that nothing waits for
_WIDTH = 200  # characters of a signature; --json has all


def drift_text(drift: Drift, *, whole: bool = False) -> str:
    """A table of patches; below it what is not OK, the names, the contracts, and the sum.

    "!" marks what waits for somebody. whole: show hunks and lists in full.
    """
    alone = drift.own == drift.target
    lines = [drift.target if alone else f"{drift.own or drift.pin} -> {drift.target}"]
    lines += _table(drift)
    for patch in drift.patches:
        lines += _patch(patch, whole)
    lines += _names(drift)
    lines += _contracts(drift, whole)
    lines += ["", *(f"not judged: {text}" for text in drift.partial), _sum(drift)]
    return printable("\n".join(line.rstrip() for line in lines))


def drift_data(drift: Drift) -> dict[str, object]:
    """For --json."""
    data: dict[str, object] = msgspec.to_builtins(drift)
    return data | {"waits": drift.waits, "partial": list(drift.partial)}


# ---- patches


def _table(drift: Drift) -> Iterator[str]:
    rows = [("patch", "verdict", f"for {drift.version or 'the target'}")]
    rows += [(patch.id, patch.state, _has(patch.target, drift)) for patch in drift.patches]
    width = [max(len(row[n]) for row in rows) for n in range(2)]
    for number, (name, state, there) in enumerate(rows):
        waits = number and drift.patches[number - 1].waits
        yield f"{'!' if waits else ' '} {name:<{width[0]}}  {state:<{width[1]}}  {there}"


def _has(there: Own, drift: Drift) -> str:
    if not there.file:
        return "none" if drift.version else "of unknown version"
    file = there.file.rpartition("/")[2]
    return f"{file} fits" if there.fits else f"has {file}, which does not fit: {there.reason}"


def _patch(patch: PatchDrift, whole: bool) -> Iterator[str]:
    """What is not OK of a patch; its hunks where somebody has to look at them."""
    if patch.state == "OK" and not patch.left_out and not whole:
        return
    yield f"\n{patch.id}" + (f" ({patch.file})" if patch.file else "")
    if patch.reason:
        yield f"  {patch.state}: {patch.reason}"
    for file in patch.files:
        if file.state != "OK" or whole:
            yield from _file(file, patch.waits, whole)
    if patch.left_out:
        yield f"  left out, as patch.yaml says: {', '.join(patch.left_out)}"


def _file(file: FileDrift, waits: bool, whole: bool) -> Iterator[str]:
    first, *rest = file.reason.splitlines() or [""]
    yield f"  {file.state:<16} {file.path}  {first}"
    yield from (f"{'':19}{line}" for line in rest)
    told = {"OK"} if whole else {"OK", "OFFSET"}  # how far, the line above says
    for hunk in file.hunks if waits or whole else ():
        if hunk.state in told:
            continue
        first, *rest = hunk.reason.splitlines() or [""]
        yield f"    hunk at line {hunk.line}: {hunk.state}: {first}"
        yield from (f"    {line}" for line in rest)
    if file.after:
        yield f"    it needs lines of {', '.join(file.after)}, which do not fit themselves"


# ---- names and contracts


def _names(drift: Drift) -> Iterator[str]:
    names = drift.names
    if names is None:
        return
    yield f"\nnames that the patches call: {names.checked} looked up, {names.unresolved} unknown"
    for one in names.findings:
        yield from _finding(one)


def _finding(one: Finding) -> Iterator[str]:
    yield f"{'!' if one.breaks else ' '} {one.patch}: {one.kind}: {one.name}: {one.why}"
    for label, text in (("was", one.old), ("is", one.new), ("see", one.hint)):
        if text:
            yield f"    {label + ':':<4} {text if len(text) <= _WIDTH else text[:_WIDTH] + ' ...'}"
    yield f"    at:  {', '.join(one.places)}"


def _contracts(drift: Drift, whole: bool) -> Iterator[str]:
    found = drift.contracts
    if found is None:
        return
    yield "\ncontracts"
    for name in get_args(Contract):
        mine = [change for change in found.changes if change.contract == name]
        told = [f"{found.same.get(name, 0)} as before"]
        kinds = dict.fromkeys(change.what for change in mine)
        told += [f"{sum(c.what == kind for c in mine)} {kind}" for kind in kinds]
        if name in found.same or mine:
            yield f"  {name}: {', '.join(told)}"
        if name in found.unknown:
            yield f"  {name}: not wholly compared: {found.unknown[name]}"
        for place in found.unread.get(name, ()):
            yield f"  {name}: not read: {place}"
        yield from _changes(drift, mine, name in SERVED, whole)


def _changes(drift: Drift, mine: Sequence[Change], served: bool, whole: bool) -> Iterator[str]:
    """Each change; what has only been added harms nothing that there was."""
    waiting = drift.changed()
    told = [change for change in mine if whole or change.what != "added" or change in waiting]
    told.sort(key=lambda change: change not in waiting)
    limit = len(told) if whole or served else max(_LISTED, sum(c in waiting for c in told))
    for change in told[:limit]:
        mark = "!" if change in waiting else " "
        users = drift.users(change)
        used = f" (used by {', '.join(users)})" if users else ""
        yield f"  {mark} {change.what}: {change.name}{used}: {change.why}"
        if change.old and change.new and change.old != change.new:
            yield f"      {change.old} -> {change.new}"
    if len(told) > limit:
        yield f"    and {len(told) - limit} more (--all shows them)"


def _sum(drift: Drift) -> str:
    states = dict.fromkeys(patch.state for patch in drift.patches)
    counts = [f"{sum(p.state == state for p in drift.patches)} {state}" for state in states]
    noun = "patch" if len(drift.patches) == 1 else "patches"
    told = f"{len(drift.patches)} {noun}: {', '.join(counts)}" if counts else "no patches"
    waiting = [
        f"{count} {one if count == 1 else many}"
        for count, one, many in (
            (sum(patch.waits for patch in drift.patches), "patch", "patches"),
            (len(drift.broken()), "name", "names"),
            (len(drift.changed()), "contract", "contracts"),
        )
        if count
    ]
    fitting = sum(patch.target.fits for patch in drift.patches)
    if drift.patches and drift.own != drift.target:
        told += f"; {fitting} with a file that fits {drift.version or 'the target'}"
    return f"{told}; " + (f"work waits: {', '.join(waiting)}" if waiting else "nothing to do")
