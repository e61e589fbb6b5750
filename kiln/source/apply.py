"""Put a series of patches onto pristine files: exactly, or not at all.

No fuzz, no offset, no reversal, no recounting. A hunk fits if the lines that it takes
stand at the very line that it names; otherwise the answer says what was found there
instead: the patch is in already, it would fit some lines away, line ends differ, or
the code has changed. All of the first patch that does not fit is reported, and of a
series that does not fit as a whole nothing is returned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kiln.canonical import sha256
from kiln.errors import BadInput, JudgedBad, KilnError, Problems, raise_problems
from kiln.lock.model import LockedPatch, PatchedFile
from kiln.pins.patch import PatchFile
from kiln.source.diff import FileDiff, Hunk, parse, split_lines

_SHOWN = 12  # lines of a hunk in a message
_WIDTH = 56  # columns of a line in a message


@dataclass(frozen=True)
class Applied:
    """What a series does. files: path -> its content after all patches; None = deleted."""

    patches: tuple[LockedPatch, ...]
    files: Mapping[str, bytes | None]


def apply_series(
    read: Callable[[str], bytes | None], names: Collection[str], series: Sequence[PatchFile]
) -> Applied:
    """Apply the patches in the order given.

    read: a pristine file by its path inside site-packages ("vllm/config/model.py"), None
    where there is none. names: all pristine paths, which tell what folders there are.

    Raises BadInput for a patch that is no good in itself (see `kiln.source.diff.parse`;
    patch.no-context, patch.no-change, patch.syntax), and JudgedBad for one that does not
    fit: patch.already-applied, patch.offset, patch.line-endings, patch.end-newline,
    patch.conflict, patch.missing-file, patch.missing-folder, patch.exists.
    """
    files: dict[str, bytes | None] = {}

    def current(path: str) -> bytes | None:
        return files[path] if path in files else read(path)

    patches: list[LockedPatch] = []
    for patch, diffs in _parse_all(series):
        where = patch.file or patch.id
        deleted = {path for path in files if files[path] is None}
        present = {*names, *files} - deleted
        errors: list[KilnError] = []
        touched: list[PatchedFile] = []
        results: dict[str, bytes | None] = {}
        for diff in diffs:
            before = current(diff.path)
            after, problems = _apply_file(diff, before, present, where)
            errors += problems or _check_result(diff, before, after, where)
            results[diff.path] = after
            touched.append(PatchedFile(diff.path, _hash(before), _hash(after)))
        raise_problems(errors)
        files.update(results)
        patches.append(LockedPatch(patch.id, sha256(patch.data), tuple(touched)))
    return Applied(tuple(patches), files)


def _parse_all(series: Sequence[PatchFile]) -> list[tuple[PatchFile, list[FileDiff]]]:
    parsed: list[tuple[PatchFile, list[FileDiff]]] = []
    errors: list[KilnError] = []
    for patch in series:
        try:
            parsed.append((patch, parse(patch.data, patch.file or patch.id)))
        except Problems as problems:
            errors += problems.errors
        except BadInput as error:
            errors.append(error)
    raise_problems(errors)
    return parsed


def _hash(data: bytes | None) -> str:
    return "" if data is None else sha256(data)


def _check_result(
    diff: FileDiff, before: bytes | None, after: bytes | None, where: str
) -> list[KilnError]:
    if before == after:
        return [
            BadInput(
                "patch.no-change",
                f"the patch names {diff.path} and leaves it as it was",
                where=f"{where}:{diff.line}",
            )
        ]
    if after is not None and diff.path.endswith(".py"):
        try:
            ast.parse(after, diff.path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return [
                BadInput(
                    "patch.syntax",
                    f"{diff.path} is no longer Python after the patch",
                    where=f"{where}:{diff.line}",
                    why=str(error),
                )
            ]
    return []


# ---- one file


def _apply_file(
    diff: FileDiff, before: bytes | None, present: Collection[str], where: str
) -> tuple[bytes | None, list[KilnError]]:
    """The file afterwards (None: gone), and why it cannot be had, hunk by hunk."""
    place = f"{where}:{diff.line}"
    if diff.new:
        return _new_file(diff, before, present, place)
    if before is None:
        return None, [_missing(diff, present, place)]
    lines = split_lines(before)
    errors = [error for hunk in diff.hunks if (error := _misfit(diff, hunk, lines, where))]
    if errors:
        if len(errors) > 1 and all(error.code == "patch.already-applied" for error in errors):
            return None, [_applied(f"all of the patch to {diff.path} is in the source", place)]
        return None, errors
    after, done = [], 0
    for hunk in diff.hunks:
        after += [*lines[done : hunk.start], *hunk.after]
        done = hunk.start + len(hunk.before)
    after += lines[done:]
    if diff.deleted:
        if after:
            return None, [
                JudgedBad(
                    "patch.conflict",
                    f"the patch deletes {diff.path}, but the file has other lines too",
                    where=place,
                    why=f"{len(after)} of {len(lines)} lines are not in the patch",
                    fix="make the patch again from this version's file",
                )
            ]
        return None, []
    return b"".join(after), []


def _new_file(
    diff: FileDiff, before: bytes | None, present: Collection[str], place: str
) -> tuple[bytes | None, list[KilnError]]:
    content = b"".join(line for hunk in diff.hunks for line in hunk.after)
    if before == content:
        return None, [_applied(f"{diff.path} exists, with just this content", place)]
    if before is not None:
        return None, [
            JudgedBad(
                "patch.exists",
                f"the patch adds {diff.path}, which exists with other content",
                where=place,
                fix="make the patch again from this version's file",
            )
        ]
    folder = diff.path.rpartition("/")[0]
    if not any(path.startswith(f"{folder}/") for path in present):
        return None, [
            JudgedBad(
                "patch.missing-folder",
                f"the patch adds {diff.path}, but there is no folder {folder}",
                where=place,
                why=_elsewhere(folder, {path.rpartition("/")[0] for path in present}),
                fix="add the file where this version of vLLM would look for it",
            )
        ]
    return content, []


def _missing(diff: FileDiff, present: Collection[str], place: str) -> KilnError:
    return JudgedBad(
        "patch.missing-file",
        f"the patch changes {diff.path}, which this version does not have",
        where=place,
        why=_elsewhere(diff.path, present),
        fix="make the patch again for this version, or limit its range in patch.yaml",
    )


def _elsewhere(path: str, paths: Collection[str]) -> str:
    """A hint if just one path has the same last part (a file that moved)."""
    last = path.rpartition("/")[2]
    same = [other for other in paths if other.rpartition("/")[2] == last]
    return f"only one of that name exists: {same[0]}" if len(same) == 1 else ""


def _applied(what: str, place: str) -> KilnError:
    return JudgedBad(
        "patch.already-applied",
        what,
        where=place,
        why="either upstream has merged it, or the source is not pristine, "
        "or the series names the patch twice",
        fix="drop the patch from this pin, or end its range in patch.yaml",
    )


# ---- one hunk


def _misfit(diff: FileDiff, hunk: Hunk, lines: list[bytes], where: str) -> KilnError | None:
    """None if the hunk fits exactly; else what is there instead."""
    place = f"{where}:{hunk.line}"
    end = hunk.start + len(hunk.before)
    if lines[hunk.start : end] == list(hunk.before) and end <= len(lines):
        open_above = hunk.start > 0 and not hunk.above
        open_below = end < len(lines) and not hunk.below
        if (open_above or open_below) and not diff.deleted:
            return BadInput(
                "patch.no-context",
                f"a hunk of {diff.path} has no context, so nothing proves that it fits",
                where=place,
                fix="make the patch with at least one line of context (-U3 is usual)",
            )
        return None
    found = _find(lines, hunk.before)
    adds = not set(hunk.after) <= set(hunk.before)
    if _at(lines, hunk.new_start, hunk.after) or (adds and not found and _find(lines, hunk.after)):
        return _applied(f"a change to {diff.path} is in the source already", place)
    if found:
        nearest = min(found, key=lambda at: abs(at - hunk.start))
        others = f"; {len(found) - 1} more places would fit too" if len(found) > 1 else ""
        return JudgedBad(
            "patch.offset",
            f"a hunk of {diff.path} fits {nearest - hunk.start:+d} lines away, not where it says",
            where=place,
            why=f"it is for line {hunk.start + 1}; its lines stand at line {nearest + 1}{others}",
            fix="make the patch again from this version's file; Kiln does not shift hunks",
        )
    bare, bare_lines = _bare(hunk.before), _bare(lines)
    found = [hunk.start] if _at(bare_lines, hunk.start, bare) else _find(bare_lines, bare)
    if found:
        source = lines[found[0] : found[0] + len(bare)]
        pairs = zip(source, hunk.before, strict=True)
        if all(a.endswith(b"\r\n") == b.endswith(b"\r\n") for a, b in pairs if a[-1:] == b[-1:]):
            why = "the source and the patch differ in the newline at the end of the file"
            return _conflict(diff, hunk, lines, place, "patch.end-newline", why)
        kinds = ("CR LF", "LF") if any(s.endswith(b"\r\n") for s in source) else ("LF", "CR LF")
        return JudgedBad(
            "patch.line-endings",
            f"a hunk of {diff.path} has other line ends than the file",
            where=place,
            why=f"the file has {kinds[0]} there, the patch {kinds[1]}; all else is the same",
            fix="make the patch again from this version's file, with core.autocrlf off",
        )
    return _conflict(diff, hunk, lines, place, "patch.conflict", "")


def _bare(lines: Sequence[bytes]) -> list[bytes]:
    return [line.rstrip(b"\r\n") for line in lines]


def _at(lines: Sequence[bytes], start: int, block: Sequence[bytes]) -> bool:
    return bool(block) and list(lines[start : start + len(block)]) == list(block)


def _find(lines: Sequence[bytes], block: Sequence[bytes]) -> list[int]:
    """Every index at which the block stands."""
    return [at for at in range(len(lines) - len(block) + 1) if _at(lines, at, block)]


def _conflict(
    diff: FileDiff, hunk: Hunk, lines: list[bytes], place: str, code: str, why: str
) -> KilnError:
    """The hunk's lines beside the source's, from the first difference on."""
    source = lines[hunk.start : hunk.start + len(hunk.before)]
    source += [b""] * (len(hunk.before) - len(source))
    rows = list(zip(hunk.before, source, strict=True))
    first = next((i for i, (a, b) in enumerate(rows) if a != b), 0)
    start = max(0, min(first - 2, len(rows) - _SHOWN))
    table = [f"{'':6}  {'the patch expects':{_WIDTH}} the source has"]
    for number, (expected, found) in enumerate(rows[start : start + _SHOWN], start):
        mark = " " if expected == found else "!"
        left, right = (_show(line)[:_WIDTH] for line in (expected, found))
        table.append(f"{hunk.start + number + 1:6}{mark} {left:{_WIDTH}} {right}".rstrip())
    return JudgedBad(
        code,
        f"a hunk of {diff.path} does not fit at line {hunk.start + 1}",
        where=place,
        why="\n".join([why, *table] if why else table),
        fix="make the patch again from this version's file, or limit its range in patch.yaml",
    )


def _show(line: bytes) -> str:
    if not line:
        return "(no line)"
    text = line.removesuffix(b"\n").decode(errors="backslashreplace")
    end = "" if line.endswith(b"\n") else " (no newline)"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + end
