"""What a move did to a patch: the same lines, elsewhere, under another name, or merged."""

from __future__ import annotations

from kiln.authoring.form import Forms
from kiln.authoring.git import Git
from kiln.authoring.plan import Move, Moved
from kiln.errors import KilnError
from kiln.source.diff import FileDiff, parse

_ORDER = ("OK", "OFFSET", "MOVED", "MERGED")


def moved(git: Git, move: Move, before: str, after: str, solved: bool) -> Moved:
    """Compare a patch's old commit with its new one (`before` to `after`).

    The state is that of its worst file; what only changes new files is OK.
    """
    if move.kept:
        return Moved("KEPT", "it has a file for this version")
    forms = Forms(git, "", frozenset())
    old = _files(forms.diff(f"{move.commit}^", move.commit), move.id)
    new = _files(forms.diff(before, after), move.id)
    if old is None or new is None:
        return Moved("SOLVED" if solved else "MERGED", "read it with `git show`")
    states: list[str] = []
    details: list[str] = []
    for path, was in old.items():
        now = new.get(path) or _elsewhere(was, old, new)
        if now is None:
            states.append("MERGED")
            details.append(f"{path}: nothing is left to do in it")
            continue
        state, detail = _compare(was, now)
        if now.path != path:
            state = "MERGED" if state == "MERGED" else "MOVED"
            detail = f"-> {now.path} {detail}".rstrip()
        states.append(state)
        if detail:
            details.append(f"{path} {detail}")
    worst = max(states, key=_ORDER.index, default="OK")
    if solved:
        worst = "SOLVED"
    return Moved(worst, "\n".join(details))


def _files(diff: bytes, where: str) -> dict[str, FileDiff] | None:
    try:
        return {file.path: file for file in parse(diff, where)}
    except KilnError:
        return None


def _elsewhere(
    was: FileDiff, old: dict[str, FileDiff], new: dict[str, FileDiff]
) -> FileDiff | None:
    """The one file that the new commit changes and the old one does not, of the same name or
    with the same changes."""
    others = [file for path, file in new.items() if path not in old]
    name = was.path.rpartition("/")[2]
    same = [file for file in others if file.path.rpartition("/")[2] == name]
    same = same or [file for file in others if _compare(was, file)[0] != "MERGED"]
    return same[0] if len(same) == 1 else None


def _compare(was: FileDiff, now: FileDiff) -> tuple[str, str]:
    """The state of one file, and how far its lines moved."""
    pairs = list(zip(was.hunks, now.hunks, strict=False))
    changed = sum((a.before, a.after) != (b.before, b.after) for a, b in pairs)
    if len(was.hunks) != len(now.hunks):
        return "MERGED", f"({len(was.hunks)} hunks became {len(now.hunks)}: read it)"
    if changed:
        return "MERGED", f"({changed} of {len(pairs)} hunks stand among changed lines: read them)"
    shifts = sorted({b.start - a.start for a, b in pairs})
    if not any(shifts):
        return "OK", ""
    far = "..".join(f"{shift:+d}" for shift in dict.fromkeys((shifts[0], shifts[-1])))
    return "OFFSET", f"{far} lines"
