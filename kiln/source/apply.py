"""Put a series of patches onto pristine files: exactly, or not at all.

    apply_series(read, names, series)         all of it, or an error
    fit_patch(patch, files)                   one patch, with an answer for each file and hunk:
                                              PatchFit -> FileFit -> Placed | Misfit

No fuzz, no search, no reversal, no recounting (kiln.source.hunks says where a hunk may
stand). All of the first patch that does not fit is reported, and of a series that does not
fit as a whole nothing is returned.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln.canonical import sha256
from kiln.errors import BadInput, KilnError, Problems, raise_problems
from kiln.lock.model import LockedPatch, PatchedFile
from kiln.pins.patch import PatchFile
from kiln.source.diff import FILE, LEFT_OVER, Parsed, parse_patch
from kiln.source.fit import File, FileFit, Files, check_links, fit_file
from kiln.source.hunks import Text
from kiln.source.leave_out import check_left_out, matcher
from kiln.source.retire import check_markers, check_retired


@dataclass(frozen=True)
class Applied:
    """What a series does. files: path -> its content after all patches; None = deleted; of a
    link its target. modes: git's mode of each of these but the deleted."""

    patches: tuple[LockedPatch, ...]
    files: Mapping[str, bytes | None]
    modes: Mapping[str, int]


@dataclass(frozen=True)
class PatchFit:
    """What comes of one patch. files: for each file that it names, in its order. errors: all
    that is wrong, those of `files` among them. after: the files after it; where something
    did not fit, as far as it did."""

    patch: PatchFile
    files: tuple[FileFit, ...]
    left_out: tuple[str, ...]
    errors: tuple[KilnError, ...]
    after: Files


def no_modes(_: str) -> int | None:
    """For a source that does not tell what may be run."""
    return None


def apply_series(
    read: Callable[[str], bytes | None],
    names: Collection[str],
    series: Sequence[PatchFile],
    modes: Callable[[str], int | None] = no_modes,
) -> Applied:
    """Apply the patches in the order given.

    read: a pristine file by its path inside site-packages ("vllm/config/model.py"), None
    where there is none. names: all pristine paths, which tell what folders there are. modes:
    git's mode of a pristine file.

    Raises BadInput for what is no good in itself (see `kiln.source.diff.parse`;
    source.left-over, patch.no-context, patch.no-change, patch.series-no-change, patch.syntax,
    patch.link, patch.link-target, patch.marker-in-own, patch.leave-out-unused,
    patch.leave-out-hides), and JudgedBad for what does not fit: patch.retired and the codes
    of `kiln.source.hunks.place` and `kiln.source.fit.fit_file`.
    """
    files = Files(read, names, modes)
    parsed = _check_all(read, names, series)
    patches: list[LockedPatch] = []
    for patch, parts in zip(series, parsed, strict=True):
        fit = fit_patch(patch, files, parts)
        raise_problems(fit.errors)
        patches.append(_locked(fit, files))
        files = fit.after
    raise_problems([*_unchanged(files, patches), *check_links(files)])
    changed = files.changed.items()
    return Applied(
        tuple(patches),
        {path: None if file is None else file.text.data for path, file in changed},
        {path: file.mode or FILE for path, file in changed if file is not None},
    )


def _check_all(
    read: Callable[[str], bytes | None], names: Collection[str], series: Sequence[PatchFile]
) -> list[Parsed]:
    """The patches, read; raises all that can be said of them before one is applied."""
    parsed: list[Parsed] = []
    errors = _left_over(names)
    for patch in series:
        errors += check_retired(patch, read)
        try:
            parsed.append(parse_series_patch(patch))
        except Problems as problems:
            errors += problems.errors
        except BadInput as error:
            errors.append(error)
        else:
            errors += check_markers(patch, parsed[-1].files)
            errors += _check_left_out(patch, parsed[-1], names)
    raise_problems(errors)
    return parsed


def _check_left_out(
    patch: PatchFile, parsed: Parsed, names: Collection[str]
) -> Iterator[KilnError]:
    where = patch.file or patch.id
    yield from check_left_out(parsed.left_out, patch.leave_out, names, where)
    if not parsed.files:
        yield BadInput(
            "patch.no-change",
            "all of the patch is left out, so it changes nothing",
            where=where,
            fix="take it out of the pin, or make leave_out in patch.yaml narrower",
        )


def parse_series_patch(patch: PatchFile) -> Parsed:
    """The patch's file, read with its own leave_out. Raises as `kiln.source.diff.parse`."""
    return parse_patch(patch.data, patch.file or patch.id, matcher(patch.leave_out))


def _left_over(names: Collection[str]) -> list[KilnError]:
    found = sorted(name for name in names if name.endswith(LEFT_OVER))
    return [
        BadInput(
            "source.left-over",
            f"the source holds {name}, which something has left behind",
            where=name,
            why="patch(1), merges and editors leave such files; so the source is not pristine",
            fix="use the wheel as it was published",
        )
        for name in found
    ]


# ---- one patch


def fit_patch(
    patch: PatchFile, files: Files, parsed: Parsed | None = None, *, check: bool = True
) -> PatchFit:
    """One patch on the files as those before it left them, which stay as they are.

    parsed: the patch, read (`parse_series_patch`, whose errors this raises). check: also
    that every file is another than before, and still Python, which takes longest. Nothing
    that does not fit is raised: it is in the result.
    """
    parsed = parsed or parse_series_patch(patch)
    where = patch.file or patch.id
    after, fits, bases = files, list[FileFit](), dict[str, Text]()
    mails = sorted({diff.mail for diff in parsed.files})
    for mail in mails:
        before, after = after, after.copy()
        for diff in (diff for diff in parsed.files if diff.mail == mail):
            fit = fit_file(diff, before, where, after, bases.get(diff.source))
            fits.append(fit)
            after.take(fit.results)
        if mail != mails[-1]:
            bases = _next_bases(fits, before, after, bases, mail)
    errors: list[KilnError] = [misfit.error for fit in fits for misfit in fit.misfits]
    seen = {misfit.path for fit in fits for misfit in fit.misfits}
    for fit in fits if check else ():
        for path in sorted(fit.results.keys() - seen):
            seen.add(path)
            spot = f"{where}:{fit.diff.line}"
            errors += _check_result(path, files.get(path), after.get(path), spot)
    left_out = tuple(sorted({part.path for part in parsed.left_out}))
    return PatchFit(patch, tuple(fits), left_out, tuple(errors), after)


def _next_bases(
    fits: Sequence[FileFit], before: Files, after: Files, bases: Mapping[str, Text], mail: int
) -> dict[str, Text]:
    """How the next mail of a patch counts in each file that the mails up to here change."""
    found = dict(bases)
    for fit in fits:
        if fit.diff.mail != mail or after.get(fit.diff.path) is None or fit.misfits:
            continue
        old = before.get(fit.diff.source)
        text = bases.get(fit.diff.source) or (old.text if old else Text.pristine(()))
        new = after.get(fit.diff.path)
        if fit.diff.new and new is not None:
            text = Text.pristine(new.text.lines)
        found[fit.diff.path] = text.rebased(fit.hunks)
    return found


def _check_result(
    path: str, before: File | None, after: File | None, where: str
) -> list[KilnError]:
    if _same(before, after):
        return [
            BadInput(
                "patch.no-change",
                f"the patch names {path} and leaves it as it was",
                where=where,
            )
        ]
    python = after is not None and path.endswith(".py") and not after.is_link
    why = _why_no_python(after.text.data) if after is not None and python else ""
    what = f"{path} is no longer Python after the patch"
    return [BadInput("patch.syntax", what, where=where, why=why)] if why else []


_NO_PYTHON: dict[str, str] = {}  # sha256 -> `_why_no_python`: a build applies a series twice


def _why_no_python(data: bytes) -> str:
    """Why the text does not parse; "" if it does."""
    sha = sha256(data)
    if sha not in _NO_PYTHON:
        try:
            ast.parse(data)
            _NO_PYTHON[sha] = ""
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            _NO_PYTHON[sha] = str(error) or type(error).__name__
    return _NO_PYTHON[sha]


def _same(one: File | None, two: File | None) -> bool:
    if one is None or two is None:
        return one is two
    return (one.text.lines, one.mode) == (two.text.lines, two.mode)


# ---- the series as a whole


def _locked(fit: PatchFit, before: Files) -> LockedPatch:
    paths = sorted({path for file in fit.files for path in file.results})
    touched = tuple(
        PatchedFile(path, _hash(before.get(path)), _hash(fit.after.get(path)),
                    _mode(fit.after.get(path)))
        for path in paths
    )  # fmt: skip
    patch = fit.patch
    return LockedPatch(
        patch.id, sha256(patch.data), touched, patch.counters, fit.left_out, patch.rules
    )


def _hash(file: File | None) -> str:
    return "" if file is None else sha256(file.text.data)


def _mode(file: File | None) -> str:
    """As a lock spells it: "" for a plain file, and for none."""
    return "" if file is None or file.mode in (None, FILE) else f"{file.mode:o}"


def _unchanged(files: Files, patches: Sequence[LockedPatch]) -> list[KilnError]:
    """ "patch.series-no-change" for files that the series touches and leaves as they were."""
    errors: list[KilnError] = []
    for path, file in sorted(files.changed.items()):
        if not _same(files.pristine(path), file):
            continue
        by = [patch.id for patch in patches if path in {touched.path for touched in patch.files}]
        errors.append(
            BadInput(
                "patch.series-no-change",
                f"the series changes {path}, and changes it back",
                where=", ".join(by),
                why="the file is as it was; so one of these patches undoes another",
                fix="take both out of the pin, or the part that the later one undoes",
            )
        )
    return errors
