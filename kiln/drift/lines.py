"""Which lines of the patched source are whose."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kiln.drift.source import Source
from kiln.errors import raise_problems
from kiln.pins.patch import PatchFile
from kiln.source.apply import fit_patch, no_modes
from kiln.source.fit import FileFit, Files


class Where(NamedTuple):
    """A line of a patch. place: "patches/p77/0.23.0.patch:41"."""

    patch: str
    place: str


@dataclass(frozen=True)
class Lines:
    """One file as a series leaves it. Lines are counted from 1.

    mine: the lines that patches put there. spots: lines at which patches change something,
    and which patches; where one only takes lines away, the line before them. whole: the
    series added the file. origin: for each line its number in the source's file, 0 for one
    that a patch put there.
    """

    path: str
    mine: Mapping[int, Where]
    spots: Mapping[int, tuple[Where, ...]]
    whole: bool
    origin: Sequence[int] = ()

    @cached_property
    def _numbers(self) -> list[int]:
        return sorted(self.mine)

    def within(self, first: int, last: int) -> bool:
        """Whether a patch put one of these lines there."""
        at = bisect.bisect_left(self._numbers, first)
        return at < len(self._numbers) and self._numbers[at] <= last


@dataclass(frozen=True)
class Patched:
    """What a series makes of a source. files: all that are not as they were, None for one
    that is gone. lines: of the Python files among them."""

    files: Mapping[str, bytes | None]
    lines: tuple[Lines, ...]


def patched(series: Sequence[PatchFile], source: Source) -> Patched:
    """The series on the source. Raises what does not fit, as `apply_series` does."""
    names = source.names()
    files = Files(lambda path: source.read(path) if path in names else None, names, no_modes)
    known: dict[str, _Owned] = {}
    for patch in series:
        fit = fit_patch(patch, files, check=False)
        raise_problems(fit.errors)
        owned: dict[str, _Owned] = {}
        for part in fit.files:  # a file stands there once for each mail of the patch
            diff = part.diff
            start = owned.get(diff.path) or known.get(diff.source) or _Owned.of(files, diff.source)
            owned[diff.path] = start.after(part, patch)
        known |= owned
        files = fit.after
    found: list[Lines] = []
    for path, file in files.changed.items():
        if file is not None and not file.is_link and path.endswith(".py") and path in known:
            origin = [at + 1 for at in file.text.origin]
            found.append(known[path].lines(path, files.pristine(path) is None, origin))
    changed = {p: None if f is None else f.text.data for p, f in files.changed.items()}
    return Patched(changed, tuple(found))


@dataclass(frozen=True)
class _Owned:
    """now: whose each line is; None: the source's. gaps: for each line, and for the end,
    who took something away before it."""

    now: tuple[Where | None, ...]
    gaps: tuple[tuple[Where, ...], ...]

    @classmethod
    def of(cls, files: Files, path: str) -> _Owned:
        file = files.get(path)
        count = len(file.text.lines) if file else 0
        return cls((None,) * count, ((),) * (count + 1))

    def after(self, part: FileFit, patch: PatchFile) -> _Owned:
        now: list[Where | None] = []
        gaps: list[tuple[Where, ...]] = []
        done, gap = 0, self.gaps[0]
        places = [(placed.hunk, placed.at) for placed in part.hunks]
        if part.diff.new:
            places = [(hunk, 0) for hunk in part.diff.hunks]
        for hunk, at in places:
            while done < at:
                now.append(self.now[done])
                gaps.append(gap)
                done += 1
                gap = self.gaps[done]
            for number, tag in enumerate(hunk.tags, 1):
                where = Where(patch.id, f"{patch.file or patch.id}:{hunk.line + number}")
                if tag == ord("-"):
                    done += 1
                    gap = (*gap, *self.gaps[done], where)
                    continue
                now.append(where if tag == ord("+") else self.now[done])
                gaps.append(gap)
                gap = ()
                if tag == ord(" "):
                    done += 1
                    gap = self.gaps[done]
        now += self.now[done:]
        gaps += [gap, *self.gaps[done + 1 :]]
        return _Owned(tuple(now), tuple(gaps))

    def lines(self, path: str, whole: bool, origin: Sequence[int]) -> Lines:
        mine = {number: where for number, where in enumerate(self.now, 1) if where}
        spots: dict[int, tuple[Where, ...]] = {n: (where,) for n, where in mine.items()}
        for number, removed in enumerate(self.gaps):
            if removed:
                spots[max(1, number)] = (*spots.get(max(1, number), ()), *removed)
        return Lines(path, mine, spots, whole, origin)
