"""Where one hunk belongs in a file, or why it has no place there.

    text = Text.pristine(split_lines(data))       # then text = text.apply([...]) for each patch
    found = place(hunk, text, path, where)
    if isinstance(found, Placed): found.at        # index from 0 of its first line
    else: found.code, found.at, found.places, found.error

A hunk names a line. Of which file? A patch is made against the pristine one, or against what
the patches before it in the series made of it. So there are two readings: the named line of
the file as it is now, and where the pristine line of that number stands now (known exactly,
from the hunks applied so far; nothing is searched). A hunk fits if its lines stand there in
one of them. If they stand at two different places, none is taken.

What does not fit is explained: it is in already, it would fit elsewhere, line ends differ,
the code has changed. For that the file is searched, and only for that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kiln.errors import BadInput, JudgedBad, KilnError
from kiln.source.diff import Hunk

_SHOWN = 12  # lines of a hunk in a message
_WIDTH = 56  # columns of a line in a message
_PLACES = 5  # places that a message names


@dataclass(frozen=True)
class Text:
    """The lines of a file in the course of a series.

    base: the lines of the file that hunks may count in: the pristine one. origin: for each
    line its index in base; -1 for one that a patch has put there.
    """

    lines: tuple[bytes, ...]
    origin: tuple[int, ...]
    base: tuple[bytes, ...]

    @classmethod
    def made(cls, lines: Sequence[bytes]) -> Text:
        """A file that a patch has added: there is no pristine one."""
        return cls(tuple(lines), (-1,) * len(lines), ())

    @classmethod
    def pristine(cls, lines: Sequence[bytes]) -> Text:
        """A file that no patch has touched."""
        return cls(tuple(lines), tuple(range(len(lines))), tuple(lines))

    @property
    def data(self) -> bytes:
        """The content."""
        return b"".join(self.lines)

    @functools.cached_property
    def _now(self) -> dict[int, int]:
        return {origin: at for at, origin in enumerate(self.origin) if origin >= 0}

    def now(self, index: int) -> int | None:
        """Where the line of this index in base stands; None if there is none, or no more."""
        return self._now.get(index)

    def apply(self, placed: Sequence[Placed]) -> Text:
        """The file after the hunks of one patch, in its order."""
        lines, origin, done = list[bytes](), list[int](), 0
        for hunk, at in ((place.hunk, place.at) for place in placed):
            lines += self.lines[done:at]
            origin += self.origin[done:at]
            done, after = at, iter(hunk.after)
            for tag in hunk.tags:
                if tag != ord("-"):
                    lines.append(next(after))
                    origin.append(self.origin[done] if tag == ord(" ") else -1)
                done += tag != ord("+")
        lines += self.lines[done:]
        origin += self.origin[done:]
        return Text(tuple(lines), tuple(origin), self.base)

    def rebased(self, placed: Sequence[Placed]) -> Text:
        """As `apply`, for the next mail of the same patch: base becomes what the mails up to
        here make of it, for that is what the next one counts in."""
        after = self.apply(placed)
        if not all(place.pristine for place in placed):
            return Text.pristine(after.lines)
        whole = [Placed(place.hunk, place.hunk.start, True, True) for place in placed]
        base = Text.pristine(self.base).apply(whole)
        origin = [-1 if at < 0 else base.now(at) for at in after.origin]
        shift = 0
        for place in placed:
            for number in range(len(place.hunk.after)):
                origin[place.at + shift + number] = place.hunk.new_start + number
            shift += len(place.hunk.after) - len(place.hunk.before)
        return Text(after.lines, tuple(-1 if at is None else at for at in origin), base.lines)


@dataclass(frozen=True)
class Placed:
    """A hunk that fits. at: index from 0 of the first line that it covers, or before which
    it adds. named, pristine: the readings (see above) by which it stands there."""

    hunk: Hunk
    at: int
    named: bool
    pristine: bool


@dataclass(frozen=True)
class Misfit:
    """Why a hunk, or a file as a whole, cannot be had.

    code: of the error. path: of the file. hunk: None where it is about the file. at: index
    from 0 of the line that it was compared with. places: indexes at which the hunk's lines
    do stand. elsewhere: paths of files of the same name, where the file itself is missing.
    """

    code: str
    path: str
    error: KilnError
    hunk: Hunk | None = None
    at: int | None = None
    places: tuple[int, ...] = ()
    elsewhere: tuple[str, ...] = ()


def place(hunk: Hunk, text: Text, path: str, where: str, whole: bool = False) -> Placed | Misfit:
    """Where the hunk belongs, or why nowhere. where: names the patch. whole: it deletes the
    file, so it needs no context.

    Codes: patch.already-applied, patch.offset, patch.ambiguous, patch.line-endings,
    patch.end-newline, patch.no-context, patch.conflict.
    """
    named, now = _stands(hunk, text.lines, hunk.start), _pristine_place(hunk, text)
    spots = ({hunk.start} if named else set()) | (set() if now is None else {now})
    if not spots:
        return _explain(hunk, text, path, where)
    if bare := [at for at in spots if not whole and not _has_context(hunk, text.lines, at)]:
        error = BadInput(
            "patch.no-context",
            f"a hunk of {path} has no context, so nothing proves that it fits",
            where=f"{where}:{hunk.line}",
            fix="make the patch with at least one line of context (-U3 is usual)",
        )
        return Misfit(error.code, path, error, hunk, bare[0], tuple(sorted(spots)))
    # It fits the pristine file, an earlier patch has changed that place, and what is at the
    # named line now only looks alike: that proves nothing.
    twin = now is None and bool(hunk.before) and _stands(hunk, text.base, hunk.start)
    if len(spots) > 1 or twin:
        return _ambiguous(hunk, path, where, spots, twin)
    return Placed(hunk, spots.pop(), named, now is not None)


def _pristine_place(hunk: Hunk, text: Text) -> int | None:
    """Where the lines of base stand that the hunk covers, if it fits them and they stand
    together still: a line that a patch has put between them could be meant or not."""
    if not hunk.before:
        return 0 if not text.lines and not text.base else None
    now = text.now(hunk.start)
    if now is None or not _stands(hunk, text.base, hunk.start):
        return None
    end = hunk.start + len(hunk.before)
    together = text.origin[now : now + len(hunk.before)] == tuple(range(hunk.start, end))
    return now if together else None


def _stands(hunk: Hunk, lines: Sequence[bytes], at: int) -> bool:
    end = at + len(hunk.before)
    return end <= len(lines) and tuple(lines[at:end]) == hunk.before


def _has_context(hunk: Hunk, lines: Sequence[bytes], at: int) -> bool:
    """Whether something above and below proves the place, but for the ends of the file."""
    end = at + len(hunk.before)
    return (at == 0 or hunk.above > 0) and (end == len(lines) or hunk.below > 0)


def _ambiguous(hunk: Hunk, path: str, where: str, spots: set[int], twin: bool) -> Misfit:
    lines = [str(at + 1) for at in sorted(spots)]
    why = (
        f"its lines are at line {hunk.start + 1} of the pristine file, which an earlier patch "
        f"has changed there, and by chance at line {lines[0]} of the file as it is now"
        if twin
        else f"line {hunk.start + 1} of the pristine file is line {' or '.join(lines)} now, and "
        "its lines stand at both"
    )
    error = JudgedBad(
        "patch.ambiguous",
        f"a hunk of {path} fits twice, and nothing says which place is meant",
        where=f"{where}:{hunk.line}",
        why=why,
        fix="make the patch again with more context (-U10)",
    )
    return Misfit(error.code, path, error, hunk, hunk.start, tuple(sorted(spots)))


# ---- what does not fit


def _explain(hunk: Hunk, text: Text, path: str, where: str) -> Misfit:
    where, lines = f"{where}:{hunk.line}", text.lines
    now = text.now(hunk.start)
    at = hunk.start if now is None else now
    found = find(lines, hunk.before)

    def misfit(error: KilnError, places: Sequence[int] = ()) -> Misfit:
        return Misfit(error.code, path, error, hunk, at, tuple(places))

    adds = not set(hunk.after) <= set(hunk.before)
    there = any(_at(lines, start, hunk.after) for start in (hunk.new_start, at))
    if there or (adds and not found and find(lines, hunk.after)):
        return misfit(applied(f"a change to {path} is in the source already", where))
    if found:
        return misfit(_offset(hunk, path, where, at, found), found)
    bare, bare_lines = _bare(hunk.before), _bare(lines)
    alike = [at] if _at(bare_lines, at, bare) else find(bare_lines, bare)
    if not alike:
        why = "it fits the pristine file; a patch before it has changed these lines"
        why = why if hunk.before and _stands(hunk, text.base, hunk.start) else ""
        return misfit(_conflict(hunk, path, where, lines, at, "patch.conflict", why))
    source = lines[alike[0] : alike[0] + len(bare)]
    pairs = zip(source, hunk.before, strict=True)
    if all(a.endswith(b"\r\n") == b.endswith(b"\r\n") for a, b in pairs if a[-1:] == b[-1:]):
        why = "the source and the patch differ in the newline at the end of the file"
        return misfit(_conflict(hunk, path, where, lines, at, "patch.end-newline", why), alike)
    kinds = ("CR LF", "LF") if any(s.endswith(b"\r\n") for s in source) else ("LF", "CR LF")
    error = JudgedBad(
        "patch.line-endings",
        f"a hunk of {path} has other line ends than the file",
        where=where,
        why=f"the file has {kinds[0]} there, the patch {kinds[1]}; all else is the same",
        fix="make the patch again from this version's file, with core.autocrlf off",
    )
    return misfit(error, alike)


def applied(what: str, where: str) -> JudgedBad:
    """ "patch.already-applied"."""
    return JudgedBad(
        "patch.already-applied",
        what,
        where=where,
        why="either upstream has merged it, or the source is not pristine, "
        "or the series names the patch twice",
        fix="drop the patch from this pin, or end its range in patch.yaml",
    )


def _offset(hunk: Hunk, path: str, spot: str, at: int, found: Sequence[int]) -> JudgedBad:
    nearest = min(found, key=lambda place: abs(place - at))
    why = f"it is for line {hunk.start + 1}"
    why += f", which is line {at + 1} after the patches before it" if at != hunk.start else ""
    if len(found) == 1:
        why += f"; its lines stand at line {nearest + 1}, and nowhere else"
    else:
        lines = ", ".join(str(place + 1) for place in found[:_PLACES])
        more = f" and {len(found) - _PLACES} more" if len(found) > _PLACES else ""
        why += f"; its lines stand at {len(found)} places: lines {lines}{more}"
    away = f"{nearest - at:+d} lines away" if nearest != at else "only without its context"
    return JudgedBad(
        "patch.offset",
        f"a hunk of {path} fits {away}, not where it says",
        where=spot,
        why=why,
        fix="make the patch again from this version's file; Kiln does not shift hunks",
    )


def _bare(lines: Sequence[bytes]) -> list[bytes]:
    return [line.rstrip(b"\r\n") for line in lines]


def _at(lines: Sequence[bytes], start: int, block: Sequence[bytes]) -> bool:
    return bool(block) and tuple(lines[start : start + len(block)]) == tuple(block)


def find(lines: Sequence[bytes], block: Sequence[bytes]) -> list[int]:
    """Every index (from 0) at which the block of lines stands."""
    if not block:
        return []
    return [at for at, line in enumerate(lines) if line == block[0] and _at(lines, at, block)]


def _conflict(
    hunk: Hunk, path: str, spot: str, lines: Sequence[bytes], at: int, code: str, why: str
) -> JudgedBad:
    table = beside(hunk.before, lines, at)
    return JudgedBad(
        code,
        f"a hunk of {path} does not fit at line {at + 1}",
        where=spot,
        why=f"{why}\n{table}" if why else table,
        fix="make the patch again from this version's file, or limit its range in patch.yaml",
    )


def beside(block: Sequence[bytes], lines: Sequence[bytes], at: int) -> str:
    """A hunk's lines beside those of the source from index `at` on, as a table: from a bit
    before the first difference, and not more than fit a message."""
    source = list(lines[at : at + len(block)])
    source += [b""] * (len(block) - len(source))
    rows = list(zip(block, source, strict=True))
    first = next((i for i, (a, b) in enumerate(rows) if a != b), 0)
    start = max(0, min(first - 2, len(rows) - _SHOWN))
    table = [f"{'':6}  {'the patch expects':{_WIDTH}} the source has"]
    for number, (expected, found) in enumerate(rows[start : start + _SHOWN], start):
        mark = " " if expected == found else "!"
        left, right = (_show(line)[:_WIDTH] for line in (expected, found))
        table.append(f"{at + number + 1:6}{mark} {left:{_WIDTH}} {right}".rstrip())
    return "\n".join(table)


def _show(line: bytes) -> str:
    if not line:
        return "(no line)"
    text = line.removesuffix(b"\n").decode(errors="backslashreplace")
    end = "" if line.endswith(b"\n") else " (no newline)"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + end
