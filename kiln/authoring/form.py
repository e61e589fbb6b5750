"""From commits to patch files that a build will take: the shipped form, proven by applying it.

Each commit may be written in several ways, and the first that fits is taken:

1. as its file has it already, so that a save changes nothing that need not change;
2. against the pristine files, with 3, 2 or 1 lines of context (more, where the file repeats
   itself): such a patch can be left out, or its neighbours can. A file in which the commit
   truly overlaps an earlier one is written against what that left;
3. all of it on top of the patches before it.

Fitting means: `kiln.source.apply`, which builds use, makes of it the very files of the
commit, at its place in the series.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kiln.authoring.commits import Commit, Side
from kiln.authoring.git import Git, failed
from kiln.authoring.lay import Blob, results
from kiln.errors import JudgedBad, KilnError, raise_problems
from kiln.pins.patch import PatchFile
from kiln.source.apply import apply_series, fit_patch, no_modes, parse_series_patch
from kiln.source.diff import split_lines
from kiln.source.fit import Files

_DIFF = (
    "diff-tree",
    "-p",
    "-r",
    "--full-index",
    "--no-renames",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--inter-hunk-context=0",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
    "-O/dev/null",
)
_CONTEXT = (3, 2, 1, 12, 50)


@dataclass(frozen=True)
class Item:
    """A commit, and what its patch's file has now. old: the diff of that file (b"" = none).
    left_out: parts of it that no wheel has; they go along. rules: a PatchFile that carries
    what patch.yaml says."""

    commit: Commit
    rules: PatchFile
    old: bytes = b""
    left_out: bytes = b""


@dataclass(frozen=True)
class Formed:
    """A diff that fits. kept: it is the old one, byte for byte. alone: it is made against the
    pristine files."""

    diff: bytes
    kept: bool
    alone: bool


@dataclass
class Forms:
    """Writes the commits of one work tree. base: the pristine commit. names: all pristine
    paths, those of binary files too."""

    git: Git
    base: str
    names: frozenset[str]
    _pristine: dict[str, bytes | None] = field(default_factory=dict)
    _blobs: dict[str, bytes] = field(default_factory=dict)

    def make(self, items: Sequence[Item]) -> list[Formed]:
        """A diff for each commit that changes something, in order.

        Raises what is wrong with the first commit that cannot be written: the codes of
        `kiln.source.apply`, or JudgedBad("authoring.no-form").
        """
        self._load(items)
        files = Files(self.read, self.names, no_modes)
        made: list[Formed] = []
        series: list[PatchFile] = []
        for item in items:
            formed, files = self._first_that_fits(item, files)
            made.append(formed)
            series.append(replace(item.rules, data=formed.diff))
        apply_series(self.read, self.names, series)
        return made

    def read(self, path: str) -> bytes | None:
        """A pristine file."""
        if path not in self._pristine:
            name = f"{self.base}:{path}"
            self._pristine[path] = self.git.blobs([name]).get(name) if "\n" not in path else None
        return self._pristine[path]

    def in_series(self, commit: Commit) -> bytes:
        """The commit as git shows it: against the one before it."""
        return self.diff(commit.parents[0], commit.id)

    def diff(self, before: str, after: str, context: int = 3) -> bytes:
        """The difference of two trees in the shipped form."""
        return self.git.run(*_DIFF, f"-U{context}", before, after)

    def _load(self, items: Sequence[Item]) -> None:
        """The files that the commits touch, pristine, before and after: all at once."""
        changes = [change for item in items for change in item.commit.changes.items()]
        names = {path: f"{self.base}:{path}" for path, _ in changes if "\n" not in path}
        sides = {side.blob for _, pair in changes for side in pair if side.blob}
        found = self.git.blobs([*names.values(), *sides])
        self._pristine |= {path: found.get(name) for path, name in names.items()}
        self._blobs |= {name: data for name, data in found.items() if name in sides}

    # ---- one commit

    def _first_that_fits(self, item: Item, files: Files) -> tuple[Formed, Files]:
        want = self._wanted(item.commit)
        plain = self.in_series(item.commit) + item.left_out
        errors: list[KilnError] = []
        seen: set[bytes] = set()
        for form in self._forms(item, files):
            if form.diff in seen:
                continue
            seen.add(form.diff)
            patch = replace(item.rules, data=form.diff)
            try:
                fit = fit_patch(patch, files, parse_series_patch(patch))
                raise_problems(fit.errors)
            except KilnError as error:
                # What is wrong with the plainest way is wrong with the commit itself.
                errors += [error] if form.diff == plain else []
                continue
            if results(fit) == want:
                return form, fit.after
        raise_problems(errors)
        raise JudgedBad(
            "authoring.no-form",
            f"commit {item.commit.shown} cannot be written as a patch that a build would take",
            where=item.commit.patch,
            why="applied strictly, it would not make the files that the commit has",
            fix="change less in one place, or change the order of the commits",
        )

    def _wanted(self, commit: Commit) -> dict[str, Blob | None]:
        return {
            path: Blob(self._blobs[after.blob], after.mode) if after.blob in self._blobs else None
            for path, (_, after) in sorted(commit.changes.items())
        }

    def _forms(self, item: Item, files: Files) -> Iterator[Formed]:
        commit, extra = item.commit, item.left_out
        if item.old:
            yield Formed(item.old, kept=True, alone=False)
        overlaps = any(path in files.changed for path in commit.changes)
        if overlaps:
            before, after, alone = self._against_pristine(commit)
            for context in _CONTEXT:
                yield Formed(self.diff(before, after, context) + extra, kept=False, alone=alone)
        for context in _CONTEXT:
            diff = self.diff(commit.parents[0], commit.id, context)
            yield Formed(diff + extra, kept=False, alone=not overlaps)

    def _against_pristine(self, commit: Commit) -> tuple[str, str, bool]:
        """Two trees between which the commit's change lies, seen from the pristine files, and
        whether that holds for all of its files."""
        left: dict[str, Side] = {}
        right: dict[str, Side] = {}
        alone = True
        for path, (before, after) in commit.changes.items():
            pristine = self.read(path)
            was, now = self._blobs.get(before.blob), self._blobs.get(after.blob)
            if pristine is None or was is None or now is None or pristine == was:
                left[path], right[path] = before, after
                alone &= (pristine or b"") == (was or b"")
                continue
            merged = self._merged(pristine, was, now)
            if merged is None:
                left[path], right[path], alone = before, after, False
            else:
                right[path] = Side(self.git.write_blob(merged), after.mode)
        return self._tree(left), self._tree({**left, **right}), alone

    def _tree(self, files: Mapping[str, Side]) -> str:
        return self.git.tree_with(
            self.base, {path: (side.mode, side.blob) for path, side in files.items()}
        )

    def _merged(self, ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
        """The pristine file with the commit's change alone; None where it overlaps another."""
        with tempfile.TemporaryDirectory(prefix="kiln-merge-") as name:
            paths = [Path(name, part) for part in ("ours", "base", "theirs")]
            for path, data in zip(paths, (ours, base, theirs), strict=True):
                path.write_bytes(data)
            arguments = ("merge-file", "-p", "-q", *map(str, paths))
            done = self.git.attempt(*arguments)
        if done.returncode == 0:
            return done.stdout
        if 0 < done.returncode < 128:  # the number of conflicts
            return None
        raise failed(self.git.folder, arguments, done)


def left_out_parts(patch: PatchFile) -> bytes:
    """The parts of a patch's file that its rules leave out, as they stand in it."""
    parsed = parse_series_patch(patch)
    if not parsed.left_out:
        return b""
    starts = sorted([file.line for file in parsed.files] + [p.line for p in parsed.left_out])
    lines = split_lines(patch.data)
    parts: list[bytes] = []
    for part in parsed.left_out:
        end = next((line for line in starts if line > part.line), len(lines) + 1)
        body = lines[part.line - 1 : end - 1]
        parts += body[: _mail_end(body)]
    text = b"".join(parts)
    return text if text.endswith(b"\n") else text + b"\n"


def _mail_end(lines: Sequence[bytes]) -> int:
    """How many of the lines come before a mail's signature, or before the next mail."""
    for at, line in enumerate(lines):
        if line.startswith(b"From "):
            return at
        if line == b"-- \n" and not any(after[:1] in b" +-@\\" for after in lines[at + 1 :]):
            return at
    return len(lines)
