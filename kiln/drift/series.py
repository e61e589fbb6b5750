"""A series of patches judged on a source: each on the files as far as those before it got.

What fits is applied, what fits some lines away is applied there, and the rest is left out;
so a patch is not blamed for one before it. Where its own misfit touches lines that such a
patch should have brought, its verdict names that patch.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kiln.drift.hunks import Judged, Places, Stood, fits, misfits, stood
from kiln.drift.model import FileDrift, HunkDrift, PatchDrift, State, worst
from kiln.drift.moved import Move, Mover
from kiln.drift.source import Source
from kiln.pins.patch import PatchFile
from kiln.source.apply import fit_patch, no_modes
from kiln.source.diff import FileDiff, Hunk
from kiln.source.fit import File, FileFit, Files, fit_file
from kiln.source.hunks import Misfit, Placed, Text, place
from kiln.source.retire import Retired, retired

Results = Mapping[str, File | None]

_WHOLE: Mapping[str, State] = {
    "patch.already-applied": "ALREADY_UPSTREAM",
    "patch.missing-file": "MISSING",
    "patch.missing-folder": "MISSING",
    "patch.ambiguous": "AMBIGUOUS",
}


def judge_series(
    series: Iterable[PatchFile], source: Source, places: Places, mover: Mover | None
) -> tuple[PatchDrift, ...]:
    """A verdict for each patch, in order.

    places: where each hunk stands in the pin's own source (see `own_places`). mover: finds
    what has moved; without one it is missing. Raises BadInput for a patch that is no good in
    itself, and what the source raises for damaged files.
    """
    judge = _Judge(source, places, mover)
    return judge.checked([judge.patch(patch) for patch in series])


def own_places(series: Iterable[PatchFile], own: Source) -> tuple[tuple[PatchDrift, ...], Places]:
    """The series on the pin's own source: verdicts, and what encloses each hunk that fits."""
    judge = _Judge(own, {}, None)
    return tuple(judge.patch(patch) for patch in series), judge.stood


def reader(source: Source) -> Callable[[str], bytes | None]:
    """A source's files as kiln.source asks for them: None where there is none."""
    names = source.names()
    return lambda path: source.read(path) if path in names else None


@dataclass(frozen=True)
class _Hole:
    """Lines that a patch should have brought to a file, and has not."""

    patch: str
    added: frozenset[bytes]
    whole: bool  # the file itself


@dataclass
class _Judge:
    source: Source
    places: Places
    mover: Mover | None
    stood: dict[tuple[str, str, int], Stood] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read = reader(self.source)
        self._files = Files(self._read, self.source.names(), no_modes)
        self._holes: dict[str, list[_Hole]] = {}
        self._moves: dict[str, Move] = {}
        self._history: list[tuple[str, str, File]] = []  # patch, path, the file after it

    def patch(self, patch: PatchFile) -> PatchDrift:
        """The next patch. One that has no place there leaves the files as they are."""
        marks, before = retired(patch, self._read), self._files
        self._files = before.copy()
        fit = fit_patch(patch, before, check=False)
        found: list[FileDrift] = []
        for file in fit.files:
            drift, results = self._file(patch, file)
            self._files.take(results)
            if not marks:
                self._history += [(patch.id, p, after) for p, after in results.items() if after]
            found.append(drift)
        state, reason = worst(file.state for file in found), ""
        if marks:
            self._files = before
            state, reason = retired_state(marks)
        elif state == "ALREADY_UPSTREAM" and not _merged(found):
            reason = "in part"
        return PatchDrift(
            patch.id,
            state,
            patch.file,
            reason,
            tuple(found),
            bool(marks) or _merged(found),
            left_out=fit.left_out,
        )

    def checked(self, drifts: Sequence[PatchDrift]) -> tuple[PatchDrift, ...]:
        """The verdicts, once it is known that what was patched is still Python.

        Parsing takes longest of all. So each file is parsed once, in its last state, and only
        if all that was done to it is OK: what has to be made anew is not finished anyway.
        """
        states: dict[str, set[State]] = {}
        for drift in drifts:
            for file in drift.files:
                states.setdefault(file.moved_to or file.path, set()).add(file.state)
        broken: dict[tuple[str, str], str] = {}
        for path in {path for _, path, _ in self._history if path.endswith(".py")}:
            after = self._files.get(path)
            if after is None or after.is_link or states[path] != {"OK"} or not _error(path, after):
                continue
            for patch, other, then in self._history:
                if other == path and (why := _error(path, then)):
                    broken[patch, path] = why
                    break
        return tuple(_broken(drift, broken) for drift in drifts)

    # ---- one file

    def _file(self, patch: PatchFile, fit: FileFit) -> tuple[FileDrift, Results]:
        lacks = bool(fit.misfits) and fit.misfits[0].code == "patch.missing-file"
        if lacks and self.mover is not None and not fit.diff.old:
            return self._missing(patch, fit.diff, self.mover)
        return self._there(patch, fit.diff, fit)

    def _there(self, patch: PatchFile, diff: FileDiff, fit: FileFit) -> tuple[FileDrift, Results]:
        """A file whose place is known. diff: as the patch has it; fit: of it, or of the same
        at the place that the file has moved to."""
        if fit.misfits and fit.misfits[0].hunk is None:
            # That all of a file is in already, is said of the file; its hunks have to agree.
            merged = fit.misfits[0].code == "patch.already-applied" and bool(diff.hunks)
            if not merged or diff.new or self._files.get(fit.diff.source) is None:
                return self._whole(patch, diff, fit.misfits[0])
        return self._hunks(patch, diff, fit)

    def _missing(self, patch: PatchFile, diff: FileDiff, mover: Mover) -> tuple[FileDrift, Results]:
        """A file that is not at its path: looked for, and judged where it is found."""
        if promised := [h.patch for h in self._holes.get(diff.path, ()) if h.whole]:
            reason = f"patch {promised[0]}, which adds it, does not fit"
            return FileDrift(diff.path, "MISSING", reason, after=tuple(promised)), {}
        if diff.path not in self._moves:
            shown = {line for hunk in diff.hunks for line in hunk.before}
            self._moves[diff.path] = mover.find(diff.path, shown)
        move = self._moves[diff.path]
        if diff.deleted and not move.path:
            return FileDrift(diff.path, "ALREADY_UPSTREAM", f"{diff.path} is gone already"), {}
        if not move.path:
            state: State = "AMBIGUOUS" if len(move.candidates) > 1 else "MISSING"
            listed = "".join(f"\n{path}" for path in move.candidates)
            return FileDrift(diff.path, state, f"{diff.path} is gone; {move.how}{listed}"), {}
        there = dataclasses.replace(diff, path=move.path)
        fit = fit_file(there, self._files, patch.file or patch.id)
        drift, results = self._there(patch, diff, fit)
        reason = f"now {move.path}: {move.how}" + (f"\n{drift.reason}" if drift.reason else "")
        state = worst(["MOVED", drift.state])
        moved = msgspec.structs.replace(drift, state=state, reason=reason, moved_to=move.path)
        return moved, results

    def _whole(self, patch: PatchFile, diff: FileDiff, misfit: Misfit) -> tuple[FileDrift, Results]:
        """A verdict on the file as such."""
        state = _WHOLE.get(misfit.code, "CONFLICT")
        reason = "\n".join(filter(None, (misfit.error.what, misfit.error.why)))
        if state != "ALREADY_UPSTREAM" and (diff.new or diff.old):
            self._hole(diff.path, _Hole(patch.id, frozenset(), True))
        return FileDrift(diff.path, state, reason), {}

    # ---- its hunks

    def _hunks(self, patch: PatchFile, diff: FileDiff, fit: FileFit) -> tuple[FileDrift, Results]:
        """Each hunk, and the file as far as they go."""
        before = self._files.get(fit.diff.source)
        if before is None or diff.new:
            return FileDrift(diff.path, "OK"), fit.results
        lines, where = before.text.lines, patch.file or patch.id
        judged = []
        for hunk, found in _each(fit, before.text, where):
            key = (patch.id, diff.path, hunk.line)
            old = self.places.get(key)
            if isinstance(found, Placed):
                self.stood[key] = stood(found, before.text)
                judged.append(fits(found, lines, old, fit.diff.path))
            else:
                judged.append(misfits(found, before.text, old))
        judged, drifts = _in_order(judged), list[HunkDrift]()
        for hunk, one in zip(diff.hunks, judged, strict=True):
            drifts.append(
                msgspec.structs.replace(one.drift, after=self._owed(patch, diff, hunk, one))
            )
            if one.placed is None and one.drift.state != "ALREADY_UPSTREAM":
                for path in {diff.path, fit.diff.path}:
                    self._hole(path, _Hole(patch.id, frozenset(hunk.added()), False))
        state = worst(drift.state for drift in drifts)
        after = tuple(dict.fromkeys(name for drift in drifts for name in drift.after))
        drift = FileDrift(diff.path, state, _count(drifts), "", tuple(drifts), after)
        if state == "OK":
            return drift, fit.results
        placed = [one.placed for one in judged if one.placed is not None]
        if not placed or diff.deleted or diff.old:
            return drift, {}
        return drift, {fit.diff.path: File(before.text.apply(placed), before.mode)}

    def _owed(self, patch: PatchFile, diff: FileDiff, hunk: Hunk, one: Judged) -> tuple[str, ...]:
        """The patches before this one whose missing lines a hunk that does not fit needs."""
        old = self.places.get((patch.id, diff.path, hunk.line))
        if one.placed is not None or one.drift.state == "ALREADY_UPSTREAM" or old is None:
            return ()
        holes = self._holes.get(diff.path, ())
        return tuple(dict.fromkeys(hole.patch for hole in holes if hole.added & old.needs))

    def _hole(self, path: str, hole: _Hole) -> None:
        self._holes.setdefault(path, []).append(hole)


def _each(fit: FileFit, text: Text, where: str) -> list[tuple[Hunk, Placed | Misfit]]:
    """Each hunk of a file with where it stands, or why nowhere."""
    known: dict[int, Placed | Misfit] = {found.hunk.line: found for found in fit.hunks}
    known |= {found.hunk.line: found for found in fit.misfits if found.hunk is not None}
    diff = fit.diff
    return [
        (hunk, known.get(hunk.line) or place(hunk, text, diff.path, where, diff.deleted))
        for hunk in diff.hunks
    ]


def _in_order(judged: Sequence[Judged]) -> list[Judged]:
    """The hunks, without the places that lie above or within that of a hunk before them."""
    end, found = 0, list[Judged]()
    for one in judged:
        if one.placed is None:
            found.append(one)
        elif one.placed.at < end:
            reason = (
                f"its lines stand at line {one.drift.at} alone, above those of a hunk before it"
            )
            drift = HunkDrift(one.drift.line, "CONFLICT", one.drift.at, one.drift.offset, reason)
            found.append(Judged(drift, None))
        else:
            end = one.placed.at + len(one.placed.hunk.before)
            found.append(one)
    return found


def _count(drifts: Sequence[HunkDrift]) -> str:
    """What is not OK, in one line: "1 of 3 hunks CONFLICT, 1 OFFSET by +12"."""
    parts = []
    for state in dict.fromkeys(drift.state for drift in drifts if drift.state != "OK"):
        some = [drift for drift in drifts if drift.state == state]
        by = ", ".join(dict.fromkeys(f"{drift.offset:+d}" for drift in some))
        parts.append(f"{len(some)} {state}" + (f" by {by}" if state == "OFFSET" else ""))
    noun = "hunk" if len(drifts) == 1 else "hunks"
    return f"of {len(drifts)} {noun}: {', '.join(parts)}" if parts else ""


def _merged(files: Sequence[FileDrift]) -> bool:
    """Whether all of a patch stands in the source already."""
    whole = [hunk.state for file in files for hunk in file.hunks]
    whole += [file.state for file in files if not file.hunks]
    return bool(whole) and set(whole) == {"ALREADY_UPSTREAM"}


def retired_state(marks: Sequence[Retired]) -> tuple[State, str]:
    """The verdict on a patch whose `retire_when` markers stand in the source, and why."""
    by = [mark.rule.superseded_by for mark in marks if mark.rule.superseded_by]
    stands = "; ".join(f"{m.rule.file}:{m.line} has {m.rule.contains!r}" for m in marks)
    if by:
        return "SUPERSEDED_BY", f"superseded by {', '.join(by)}: {stands}"
    return "ALREADY_UPSTREAM", f"upstream has it: {stands}"


def _error(path: str, file: File) -> str:
    """Why a file is not Python, "" if it is."""
    return _parse_error(path, file.text.data)


@functools.lru_cache(maxsize=256)  # a pin's file and the target's are often the same
def _parse_error(path: str, data: bytes) -> str:
    try:
        ast.parse(data, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return ""


def _broken(drift: PatchDrift, broken: Mapping[tuple[str, str], str]) -> PatchDrift:
    files = [
        msgspec.structs.replace(
            file, state="CONFLICT", reason=f"no longer Python after the patch: {why}"
        )
        if (why := broken.get((drift.id, file.moved_to or file.path)))
        else file
        for file in drift.files
    ]
    if files == list(drift.files):
        return drift
    state = worst(file.state for file in files)
    return msgspec.structs.replace(drift, state=state, files=tuple(files))
