"""Fitting what a patch says of one file to the file as it is: new, changed, moved, gone.

files = Files(read, names, modes)             # the source; grows as patches are taken
fit = fit_file(diff, files, where)            # nothing is changed by it
fit.misfits or files.take(fit)
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kiln.errors import BadInput, JudgedBad
from kiln.source.diff import FILE, LINK, FileDiff, split_lines
from kiln.source.hunks import Misfit, Placed, Text, applied, place

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class File:
    """A file in the course of a series; of a link the text is its target. mode: git's;
    None where the source does not say whether it may be run."""

    text: Text
    mode: int | None

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return self.mode == LINK


class Files:
    """All files, as they are after the patches taken so far. changed: those that are not as
    in the source; None = deleted."""

    def __init__(
        self, read: Read, names: Collection[str], modes: Callable[[str], int | None]
    ) -> None:
        self._read, self._names, self._modes = read, frozenset(names), modes
        self._pristine: dict[str, File | None] = {}  # what has been read, shared with copies
        self.changed: dict[str, File | None] = {}

    def copy(self) -> Files:
        """The same, to be changed apart."""
        other = Files(self._read, self._names, self._modes)
        other._pristine, other.changed = self._pristine, dict(self.changed)
        return other

    def pristine(self, path: str) -> File | None:
        """The file of the source."""
        if path not in self._pristine:
            data, file = self._read(path), None
            if data is not None:
                file = File(Text.pristine(split_lines(data)), self._modes(path))
            self._pristine[path] = file
        return self._pristine[path]

    def get(self, path: str) -> File | None:
        """The file as it is now."""
        return self.changed[path] if path in self.changed else self.pristine(path)

    @property
    def names(self) -> frozenset[str]:
        """All paths there are now."""
        gone = {path for path, file in self.changed.items() if file is None}
        return self._names.union(self.changed) - gone

    def has_folder(self, folder: str) -> bool:
        """Whether the source has the folder, even if no file of it is left."""
        return any(name.startswith(f"{folder}/") for name in self._names.union(self.changed))

    def link_above(self, path: str) -> str:
        """The link through which the path would lead, or ""."""
        links = (name for name, file in self.changed.items() if file is not None and file.is_link)
        return next((name for name in links if path.startswith(f"{name}/")), "")

    def take(self, results: Mapping[str, File | None]) -> None:
        """Change these."""
        self.changed.update(results)


@dataclass(frozen=True)
class FileFit:
    """What comes of a patch to one file. results: path -> the file afterwards (two of a
    rename), and nothing where there are misfits. hunks: those that fit."""

    diff: FileDiff
    results: Mapping[str, File | None] = field(default_factory=dict)
    hunks: tuple[Placed, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def fit_file(
    diff: FileDiff, files: Files, where: str, after: Files | None = None, base: Text | None = None
) -> FileFit:
    """What the diff makes of the file. where: names the patch.

    after: the files with what the same mail has done to others before. base: the file's text
    with the numbers in which the diff counts, where that is not the pristine file's (a later
    mail of one patch).

    Codes of misfits: those of `kiln.source.hunks.place`; patch.missing-file,
    patch.missing-folder, patch.exists, patch.wrong-type, patch.through-link, patch.link.
    """
    spot = f"{where}:{diff.line}"
    if misfit := _in_the_way(diff, files, after or files, spot):
        return FileFit(diff, misfits=(misfit,))
    before = files.get(diff.source)
    if diff.new:
        return _new_file(diff, before, spot)
    if before is None:
        return FileFit(diff, misfits=(_missing(diff, files, spot),))
    if misfit := _wrong_type(diff, before, spot):
        return FileFit(diff, misfits=(misfit,))
    text = base or before.text
    found = [place(hunk, text, diff.path, where, diff.deleted) for hunk in diff.hunks]
    placed = tuple(each for each in found if isinstance(each, Placed))
    misfits = [each for each in found if isinstance(each, Misfit)]
    if not misfits and not (all(p.named for p in placed) or all(p.pristine for p in placed)):
        misfits = [_mixed(diff, placed, spot)]
    if len(misfits) == len(found) > 1 and {m.code for m in misfits} == {"patch.already-applied"}:
        what = f"all of the patch to {diff.path} is in the source"
        misfits = [_misfit(diff, applied(what, spot))]
    if misfits:
        return FileFit(diff, {}, placed, tuple(misfits))
    return _result(diff, before, placed, spot)


def _misfit(diff: FileDiff, error: JudgedBad | BadInput, elsewhere: tuple[str, ...] = ()) -> Misfit:
    return Misfit(error.code, diff.path, error, elsewhere=elsewhere)


def _result(diff: FileDiff, before: File, placed: tuple[Placed, ...], spot: str) -> FileFit:
    after = before.text.apply(placed)
    if diff.deleted:
        if not after.lines:
            return FileFit(diff, {diff.path: None}, placed)
        error = JudgedBad(
            "patch.conflict",
            f"the patch deletes {diff.path}, but the file has other lines too",
            where=spot,
            why=f"{len(after.lines)} of {len(before.text.lines)} lines are not in the patch",
            fix="make the patch again from this version's file",
        )
        return FileFit(diff, {}, placed, (_misfit(diff, error),))
    if len(_line_ends(before.text)) == 1 < len(_line_ends(after)):
        error = JudgedBad(
            "patch.line-endings",
            f"the patch adds lines to {diff.path} that end in another way than all its others",
            where=spot,
            why="the file would have lines that end in CR LF, and some that end in LF",
            fix="make the patch again from this version's file, with core.autocrlf off",
        )
        return FileFit(diff, {}, placed, (_misfit(diff, error),))
    mode = before.mode if diff.mode is None else diff.mode
    if mode == LINK and (misfit := _bad_link(diff, after.data, spot)):
        return FileFit(diff, {}, placed, (misfit,))
    if not diff.old:
        return FileFit(diff, {diff.path: File(after, mode)}, placed)
    # Its lines have other numbers under another name, so only what it is now can be counted in.
    results: dict[str, File | None] = {diff.path: File(Text.made(after.lines), mode)}
    return FileFit(diff, results if diff.copied else {**results, diff.old: None}, placed)


def _line_ends(text: Text) -> set[bool]:
    """Whether lines end in CR LF; the last may have no end."""
    return {line.endswith(b"\r\n") for line in text.lines if line.endswith(b"\n")}


def _mixed(diff: FileDiff, placed: tuple[Placed, ...], spot: str) -> Misfit:
    lines = ", ".join(str(p.hunk.line) for p in placed if not p.pristine)
    return _misfit(
        diff,
        JudgedBad(
            "patch.ambiguous",
            f"the hunks of {diff.path} do not count in one and the same file",
            where=spot,
            why=f"those at lines {lines} fit the file as it is now, the others the pristine one",
            fix="make the patch again, against the pristine file or on top of those before it",
        ),
    )


# ---- the file as a whole


def _in_the_way(diff: FileDiff, files: Files, after: Files, spot: str) -> Misfit | None:
    """Why nothing may be written at the path, whatever the diff says."""
    for path in {diff.path, diff.source}:
        if link := after.link_above(path):
            error = JudgedBad(
                "patch.through-link",
                f"{path} lies behind the link {link}",
                where=spot,
                why="it would be written where the link leads, or in place of the link",
                fix="name the file by its own path",
            )
            return _misfit(diff, error)
    if not diff.new and not diff.old:
        return None
    folder, names = diff.path.rpartition("/")[0], files.names
    if diff.old and diff.path in names:
        if files.get(diff.source) is None:
            return _misfit(diff, applied(f"{diff.old} is {diff.path} already", spot))
        return _misfit(diff, _exists(diff, spot))
    if any(name.startswith(f"{diff.path}/") for name in names):
        return _misfit(diff, _exists(diff, spot, "as a folder"))
    if files.has_folder(folder):
        return None
    elsewhere = _same_name(folder, {name.rpartition("/")[0] for name in names})
    error = JudgedBad(
        "patch.missing-folder",
        f"the patch adds {diff.path}, but there is no folder {folder}",
        where=spot,
        why=_hint(elsewhere),
        fix="add the file where this version of vLLM would look for it",
    )
    return _misfit(diff, error, elsewhere)


def _new_file(diff: FileDiff, before: File | None, spot: str) -> FileFit:
    lines = [line for hunk in diff.hunks for line in hunk.after]
    after = File(Text.made(lines), diff.mode)
    if before is not None:
        same = (before.text.data, before.is_link) == (after.text.data, after.is_link)
        error = _exists(diff, spot)
        if same:
            error = applied(f"{diff.path} exists, with just this content", spot)
        return FileFit(diff, misfits=(_misfit(diff, error),))
    if after.is_link and (misfit := _bad_link(diff, after.text.data, spot)):
        return FileFit(diff, misfits=(misfit,))
    return FileFit(diff, {diff.path: after})


def _exists(diff: FileDiff, spot: str, how: str = "with other content") -> JudgedBad:
    return JudgedBad(
        "patch.exists",
        f"the patch adds {diff.path}, which exists {how}",
        where=spot,
        fix="make the patch again from this version's file",
    )


def _missing(diff: FileDiff, files: Files, spot: str) -> Misfit:
    elsewhere = _same_name(diff.source, files.names)
    error = JudgedBad(
        "patch.missing-file",
        f"the patch changes {diff.source}, which "
        + ("an earlier patch deletes" if diff.source in files.changed else "this version lacks"),
        where=spot,
        why=_hint(elsewhere),
        fix="make the patch again for this version, or limit its range in patch.yaml",
    )
    return _misfit(diff, error, elsewhere)


def _same_name(path: str, paths: Collection[str]) -> tuple[str, ...]:
    """Paths with the same last part: where a file may have moved to."""
    last = path.rpartition("/")[2]
    return tuple(sorted(other for other in paths if other.rpartition("/")[2] == last))


def _hint(elsewhere: tuple[str, ...]) -> str:
    return f"only one of that name exists: {elsewhere[0]}" if len(elsewhere) == 1 else ""


# ---- modes and links


def _wrong_type(diff: FileDiff, before: File, spot: str) -> Misfit | None:
    """Why the file is not of the kind that the patch takes it for."""
    wants_link = LINK in (diff.old_mode, diff.mode)
    if (diff.hunks or diff.deleted or diff.old_mode) and wants_link != before.is_link:
        kinds = ("a link", "a file") if wants_link else ("a file", "a link")
        error = JudgedBad(
            "patch.wrong-type",
            f"the patch is for {kinds[0]}, and {diff.source} is {kinds[1]}",
            where=spot,
            why="nothing is written through a link, or in place of one",
            fix="make the patch again from what stands there",
        )
        return _misfit(diff, error)
    changes = diff.old_mode is not None and diff.mode is not None and diff.old_mode != diff.mode
    if changes and before.mode is not None and before.mode != diff.old_mode:
        error = applied(f"{diff.path} has the mode {diff.mode or FILE:o} already", spot)
        return _misfit(diff, error)
    return None


def _bad_link(diff: FileDiff, target: bytes, spot: str) -> Misfit | None:
    path = link_target(diff.path, target)
    if path and path != diff.path:
        return None
    error = BadInput(
        "patch.link",
        f"{diff.path} would be a link to {target.decode(errors='backslashreplace')!r}",
        where=spot,
        why="links are relative, and at no point of their way leave vllm/",
        fix="link to a file of the package, or write the file itself into the patch",
    )
    return _misfit(diff, error)


def link_target(path: str, target: bytes) -> str:
    """Where a link at `path` leads, in site-packages; "" if it leaves vllm/ on the way."""
    try:
        text = target.decode()
    except UnicodeDecodeError:
        return ""
    at = path.split("/")[:-1]
    if not text or text.startswith("/") or "\0" in text or "\n" in text:
        return ""
    for part in text.split("/"):
        if part == "..":
            at.pop()
        elif part not in ("", "."):
            at.append(part)
        if at[:1] != ["vllm"]:
            return ""
    return posixpath.join(*at)


def check_links(files: Files) -> Iterator[BadInput]:
    """ "patch.link-target" for each link that does not lead to a file of the package."""
    names = files.names
    for path, file in files.changed.items():
        if file is None or not file.is_link:
            continue
        target = link_target(path, file.text.data)
        end = files.get(target) if target in names else None
        if end is None or end.is_link:
            yield BadInput(
                "patch.link-target",
                f"the link {path} leads to {target}, which is no file",
                where=path,
                why="a link to a folder would give its modules two names; one to a link, or to "
                "nothing, breaks when the other goes",
                fix="link to the file itself",
            )
