"""What becomes of one hunk in a file of another version.

`kiln.source.hunks.place` says where a hunk fits exactly; this says what the rest means for
whoever carries the patch over: moved by some lines, merged, several places, gone. Nothing
counts as the place of a hunk because its lines look alike: they have to be equal, to stand
there once, and within the same class and function as in the pin's own source, where that is
known. In two twin classes the same lines are two different things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.drift.model import HunkDrift, State
from kiln.drift.scope import indentation, scope
from kiln.source.diff import Hunk
from kiln.source.hunks import Misfit, Placed, Text, beside, find

Scopes = tuple[str, ...]
_MANY = 5  # places that a message names


@dataclass(frozen=True)
class Judged:
    """A hunk's verdict, and where it would go: None where that is not one certain place."""

    drift: HunkDrift
    placed: Placed | None


@dataclass(frozen=True)
class Stood:
    """Where a hunk stands in the pin's own source: in which classes and functions, and which
    (from 0) it is of so many places there that are alike. line: index of its first line in
    the pristine file; -1 for a line of a patch. needs: the lines of its context that patches
    before it have brought."""

    line: int
    scopes: Scopes
    rank: int
    count: int
    needs: frozenset[bytes]


Places = Mapping[tuple[str, str, int], Stood]
"""(patch, path, line of the hunk in the .patch) -> where it stands in the pin's source."""


def scopes(hunk: Hunk, lines: Sequence[bytes], at: int, side: bytes = b"-") -> Scopes:
    """The class and function around each group of changed lines of a hunk.

    at: index of the hunk's first line in the file. side: b"-" where the file has the lines
    before, b"+" where it has those after.
    """
    found: list[str] = []
    position, before, after, depth, start = 0, iter(hunk.before), iter(hunk.after), -1, -1
    for tag in [*(hunk.tags[n : n + 1] for n in range(len(hunk.tags))), b" "]:
        if tag == b" ":
            if start >= 0:
                found.append(scope(lines, at + start, max(depth, 0)))
            depth, start = -1, -1
            next(before, None), next(after, None)
            position += 1
            continue
        line = next(before) if tag == b"-" else next(after)
        start = position if start < 0 else start
        if depth < 0 and line.strip():
            depth = indentation(line)
        position += tag == side
    return tuple(found)


def stood(placed: Placed, text: Text) -> Stood:
    """What tells the place of a hunk that fits the pin's own source."""
    hunk, at = placed.hunk, placed.at
    within = scopes(hunk, text.lines, at)
    alike = _alike(hunk, text.lines, within)
    origins = text.origin[at : at + len(hunk.before)]
    needs = {line for line, origin in zip(hunk.before, origins, strict=True) if origin < 0}
    line = text.origin[at] if at < len(text.origin) else -1
    return Stood(line, within, alike.index(at), len(alike), frozenset(filter(bytes.strip, needs)))


def fits(placed: Placed, lines: Sequence[bytes], old: Stood | None, path: str) -> Judged:
    """A hunk that stands exactly where it should: OK, unless that is another function now,
    or another of several places that are alike."""
    hunk, at = placed.hunk, placed.at
    if old is None or not path.endswith(".py"):
        return Judged(HunkDrift(hunk.line, "OK", at + 1), placed)
    places, within = find(lines, hunk.before), scopes(hunk, lines, at)
    if within != old.scopes and len(places) > 1:
        return _no(hunk, "AMBIGUOUS", _places(hunk, places, lines, old))
    if within != old.scopes:
        elsewhere = _elsewhere(within, old)
        reason = f"its lines stand at line {at + 1}, where they should, but {elsewhere}"
        return Judged(HunkDrift(hunk.line, "CONFLICT", at + 1, 0, reason), None)
    alike = _alike(hunk, lines, within)
    if len(alike) > 1 and (alike.index(at), len(alike)) != (old.rank, old.count):
        return _no(hunk, "AMBIGUOUS", _places(hunk, places, lines, old))
    return Judged(HunkDrift(hunk.line, "OK", at + 1), placed)


def _alike(hunk: Hunk, lines: Sequence[bytes], within: Scopes) -> list[int]:
    """The places at which a hunk's lines stand in the same classes and functions."""
    return [at for at in find(lines, hunk.before) if scopes(hunk, lines, at) == within]


def misfits(misfit: Misfit, text: Text, old: Stood | None) -> Judged:
    """A hunk that does not fit exactly; `misfit.hunk` is not None."""
    hunk, path, lines = misfit.hunk, misfit.path, text.lines
    assert hunk is not None
    if misfit.code == "patch.offset":
        return _offset(hunk, misfit, text, old)
    if misfit.code == "patch.already-applied":
        return _already(hunk, misfit, lines, old)
    if misfit.code == "patch.ambiguous":
        reason = f"{misfit.error.what}: {misfit.error.why}"
        return _no(hunk, "AMBIGUOUS", reason)
    if misfit.code == "patch.conflict":
        return _no(hunk, "CONFLICT", conflict(hunk, lines, misfit.at or 0, path))
    return _no(hunk, "CONFLICT", f"{misfit.error.what}\n{misfit.error.why}".strip())


def conflict(hunk: Hunk, lines: Sequence[bytes], at: int, path: str) -> str:
    """The hunk beside the part of the file that is most like it."""
    found = _most_like(hunk, lines, at)
    if found is None:
        return f"{path} has none of the lines that the hunk names"
    start, count = found
    told = f"{count} of {len(hunk.before)} lines stand as they should at line {start + 1}"
    added = tuple(line for line in hunk.added() if line.strip())
    there = find(lines, added) if len(added) > 1 else []
    hint = f"; all that it adds stands at line {there[0] + 1} already" if there else ""
    return f"{told}{hint}\n{beside(hunk.before, lines, start)}"


def _no(hunk: Hunk, state: State, reason: str) -> Judged:
    return Judged(HunkDrift(hunk.line, state, reason=reason), None)


def _offset(hunk: Hunk, misfit: Misfit, text: Text, old: Stood | None) -> Judged:
    """How far is counted between the pristine files, so that other patches do not matter."""
    lines = text.lines
    if len(misfit.places) > 1:
        return _no(hunk, "AMBIGUOUS", _places(hunk, misfit.places, lines, old))
    (place,) = misfit.places
    now, was = text.origin[place], old.line if old is not None else -1
    if now < 0 or was < 0:
        now, was = place, misfit.at or 0
    within = scopes(hunk, lines, place)
    if old is not None and misfit.path.endswith(".py") and within != old.scopes:
        reason = f"its lines stand at line {now + 1} alone, but {_elsewhere(within, old)}"
        return Judged(HunkDrift(hunk.line, "CONFLICT", now + 1, now - was, reason), None)
    reason = f"its lines stand at line {now + 1}, not at line {was + 1}"
    drift = HunkDrift(hunk.line, "OFFSET", now + 1, now - was, reason)
    return Judged(drift, Placed(hunk, place, named=False, pristine=False))


def _places(hunk: Hunk, places: Sequence[int], lines: Sequence[bytes], old: Stood | None) -> str:
    shown = ", ".join(str(place + 1) for place in places[:_MANY])
    more = f" and {len(places) - _MANY} more" if len(places) > _MANY else ""
    told = f"its lines stand at {len(places)} places: lines {shown}{more}"
    if old is None:
        return told
    same = _alike(hunk, lines, old.scopes)
    if len(same) == 1:
        return f"{told}; only line {same[0] + 1} is in {_named(old.scopes)}, as in the pin's source"
    was = "the only one" if old.count == 1 else f"number {old.rank + 1} of {old.count}"
    return f"{told}; in the pin's source it was {was}"


def _already(hunk: Hunk, misfit: Misfit, lines: Sequence[bytes], old: Stood | None) -> Judged:
    places = find(lines, hunk.after)
    sides = {place: scopes(hunk, lines, place, b"+") for place in places}
    same = [place for place in places if old is None or sides[place] == old.scopes]
    if places and not same and old is not None and misfit.path.endswith(".py"):
        elsewhere = _elsewhere(sides[places[0]], old)
        reason = f"the lines that it makes stand at line {places[0] + 1}, but {elsewhere}"
        return _no(hunk, "CONFLICT", reason)
    at = (same or [misfit.at or 0])[0]
    reason = f"the lines that it makes stand at line {at + 1} already"
    return Judged(HunkDrift(hunk.line, "ALREADY_UPSTREAM", at + 1, reason=reason), None)


def _elsewhere(within: Scopes, old: Stood) -> str:
    return f"in {_named(within)}, where the patch is for {_named(old.scopes)}"


def _named(found: Scopes) -> str:
    return " and ".join(name or "the module itself" for name in dict.fromkeys(found))


def _most_like(hunk: Hunk, lines: Sequence[bytes], at: int) -> tuple[int, int] | None:
    """Where most of a hunk's lines stand at their distances, and how many do.

    Blank lines and lone brackets say nothing; of equally good places the nearest counts.
    """
    offsets: dict[bytes, list[int]] = {}
    for number, line in enumerate(hunk.before):
        if len(line.strip()) > 2:
            offsets.setdefault(line, []).append(number)
    votes: dict[int, int] = {}
    for index, line in enumerate(lines):
        for number in offsets.get(line, ()):
            votes[index - number] = votes.get(index - number, 0) + 1
    if not votes:
        return None
    start = min(votes, key=lambda place: (-votes[place], abs(place - at)))
    start = min(max(start, 0), max(len(lines) - 1, 0))
    window = lines[start : start + len(hunk.before)]
    return start, sum(a == b for a, b in zip(hunk.before, window, strict=False))
