"""Unified diffs, read strictly and as bytes.

Three forms are read: what `git format-patch` and `git diff` write (mails in a row too, each
made on top of those before it), and plain `--- a/x` `+++ b/x` diffs. The format is that of
git-diff(1), "GENERATING PATCH TEXT WITH -P", less everything that has to be guessed: a hunk
has exactly the lines that its header counts, and between two files stands nothing but a
mail's ends.

    parse(data, "patches/x/1.patch")              -> the files that it names, or an error
    parse_patch(data, where, globs.match)         -> those, and what is to be left out of it
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.source.diff_reader import DiffReader, Hunk, split_lines

__all__ = ["EXECUTABLE", "FILE", "LEFT_OVER", "LINK", "FileDiff", "Hunk", "LeftOut", "Parsed",
           "parse", "parse_patch", "split_lines"]  # fmt: skip

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
"""git's modes: of a file, of one that may be run, of a symbolic link."""

_NOWHERE = b"/dev/null"
_MARKS = (
    b"index",
    b"old mode",
    b"new mode",
    b"new file mode",
    b"deleted file mode",
    b"rename from",
    b"rename to",
    b"copy from",
    b"copy to",
    b"similarity index",
    b"dissimilarity index",
    b"Binary files",
    b"GIT binary patch",
)
_MODES = {b"%o" % mode: mode for mode in (FILE, EXECUTABLE, LINK)}
_SUBMODULE = b"160000"
_INDEX = re.compile(rb"([0-9a-f]+)\.\.([0-9a-f]+)(?: ([0-7]{6}))?")
# git's names for an empty file, by SHA-1 and SHA-256, as short as an index line has them.
_EMPTY = (b"e69de29", b"473a0f4")
# Left behind by patch(1), merges and editors; never a part of a program.
LEFT_OVER = (".rej", ".orig", "~")
# Errors after which the rest of a patch cannot be trusted to be what it looks like.
_FATAL = ("patch.corrupt", "patch.line-endings")


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file.

    path: of the file afterwards (or of the deleted one). line: where its part of the patch
    begins. old: the path before, of a rename or a copy; else "". old_mode, mode: git's modes
    where the patch speaks of them, else None; for a link always LINK. mail: number of the
    mail, from 0: hunks count their lines in what the mails before have made.
    """

    path: str
    line: int
    new: bool
    deleted: bool
    hunks: tuple[Hunk, ...]
    old: str = ""
    copied: bool = False
    old_mode: int | None = None
    mode: int | None = None
    mail: int = 0

    @property
    def source(self) -> str:
        """The path that it reads."""
        return self.old or self.path


@dataclass(frozen=True)
class LeftOut:
    """A part of a patch that is not taken. line: where it begins. new: it adds the file.
    old: the path before, where it is another."""

    path: str
    line: int
    new: bool
    old: str = ""


@dataclass(frozen=True)
class Parsed:
    """A patch: what it does, in its order, and what is left out of it."""

    files: tuple[FileDiff, ...]
    left_out: tuple[LeftOut, ...]


def parse(data: bytes, where: str) -> list[FileDiff]:
    """The files that a patch names, in its order; `where` names the patch in errors.

    Raises BadInput: patch.corrupt (counts, unknown or surplus lines, no file at all),
    patch.line-endings (the headers end in CRLF), patch.prefix (no a/ and b/),
    patch.outside (not a plain path inside vllm/), patch.left-over (*.rej, *.orig, *~),
    patch.binary, patch.mode, patch.not-a-file (submodules), patch.twice.
    """
    return list(parse_patch(data, where, lambda _: False).files)


def parse_patch(data: bytes, where: str, leave_out: Callable[[str], bool]) -> Parsed:
    """As `parse`; the parts whose paths `leave_out` takes, binary ones too, are left out."""
    return _Parser(data, where, leave_out).patch()


class _Parser(DiffReader):
    def __init__(self, data: bytes, where: str, leave_out: Callable[[str], bool]) -> None:
        super().__init__(data, where)
        self._leave_out, self._mail = leave_out, 0

    # ---- the patch as a whole

    def patch(self) -> Parsed:
        """Everything; see `parse`."""
        found: list[FileDiff] = []
        left_out: list[LeftOut] = []
        errors: list[KilnError] = []
        self._skip_mail()
        while self._peek():
            try:
                diff = self._file()
            except BadInput as error:
                if error.code in _FATAL:
                    raise
                errors.append(error)
                self._pass_body()
            else:
                if isinstance(diff, LeftOut):
                    left_out.append(diff)
                else:
                    errors += self._twice(diff, found)
                    found.append(diff)
            self._end_of_file()
        raise_problems(errors)
        if not found and not left_out:
            raise self._corrupt("it names no file (`diff --git`, or `---` and `+++`)", 1)
        return Parsed(tuple(found), tuple(left_out))

    def _twice(self, diff: FileDiff, found: list[FileDiff]) -> list[KilnError]:
        """A mail names a file once; a copy's source is only read."""
        mine = _written(diff)
        others = {path for other in found if other.mail == diff.mail for path in _written(other)}
        return [
            self._error("twice", f"the patch names {path} twice", line=diff.line)
            for path in sorted(mine & others)
        ]

    def _at_header(self) -> bool:
        line = self._peek()
        if line.startswith(b"--- ") and self._at + 1 < len(self._lines):
            return self._lines[self._at + 1].startswith(b"+++ ")
        return line.startswith(b"diff --git ")

    def _skip_mail(self) -> None:
        """Go to the next file's header; what a mail has before it is for people."""
        while (line := self._peek()) and not self._at_header():
            if line.startswith((b"@@ -", b"Binary files ", b"GIT binary patch", b"Only in ")):
                raise self._corrupt("this line stands before any header of a file")
            self._at += 1

    def _pass_body(self) -> None:
        """Go behind a file's part: its hunks strictly, for their lines can look like headers."""
        if list(self._hunks()):
            return
        while (line := self._peek()) and not self._at_header():
            if line.startswith(b"From ") or line == b"-- \n":
                return
            self._at += 1

    def _end_of_file(self) -> None:
        """What may follow a file: the next one, a mail's signature, a mail, the end."""
        signature = False
        while (line := self._peek()) and (signature or not self._at_header()):
            if line.startswith(b"From "):
                self._mail += 1
                self._skip_mail()
                return
            if signature:
                surplus = line.startswith((b"+", b"-", b" ", b"@@", b"\\", b"diff "))
            else:
                signature = line == b"-- \n"
                surplus = bool(line.strip()) and not signature and not line.startswith(b"diff -")
            if surplus:
                raise self._corrupt("this line belongs to no hunk; does the last one count it?")
            self._at += 1

    # ---- one file

    def _file(self) -> FileDiff | LeftOut:
        line, header, marks, names = self._at + 1, b"", dict[bytes, bytes](), (b"", b"")
        if self._peek().startswith(b"diff --git "):
            header = self._header_line()
            marks = self._marks()
        if self._peek().startswith(b"--- "):
            names = self._name_line(b"--- "), self._name_line(b"+++ ")
        old, path = self._paths(header, marks, names, line)
        if all(self._leave_out(name) for name in {old, path}):
            self._pass_body()
            new = b"new file mode" in marks or names[0] == _NOWHERE
            return LeftOut(path, line, new, old if old != path else "")
        for name in {old, path}:
            self._check_inside(name, line)
        self._refuse(marks, line)
        new, deleted = b"new file mode" in marks, b"deleted file mode" in marks
        if header and names[0] and (new, deleted) != tuple(n == _NOWHERE for n in names):
            raise self._corrupt(f"its lines do not agree on whether {path} is new or deleted", line)
        new, deleted = new or names[0] == _NOWHERE, deleted or names[1] == _NOWHERE
        moved, copied = old != path, b"copy from" in marks
        if moved and (new or deleted):
            raise self._corrupt(f"{path} is moved, and yet new or deleted", line)
        old_mode, mode = self._modes(marks, new, deleted, line)
        hunks = tuple(self._hunks())
        diff = FileDiff(path, line, new, deleted, hunks, old if moved else "", copied,
                        old_mode, mode, self._mail)  # fmt: skip
        self._check_whole(diff, marks)
        return diff

    def _check_whole(self, diff: FileDiff, marks: dict[bytes, bytes]) -> None:
        """Refuse what says nothing, or less than its own header promises."""
        path, line, hunks = diff.path, diff.line, diff.hunks
        modes = diff.old_mode != diff.mode and not (diff.new or diff.deleted)
        if not hunks and not (diff.new or diff.deleted or diff.old or modes):
            raise self._corrupt(f"it names {path} and says nothing about it", line)
        if diff.new and (len(hunks) > 1 or any(hunk.before for hunk in hunks)):
            raise self._corrupt(f"{path} is said to be new, yet has lines before", line)
        if diff.deleted and (len(hunks) > 1 or any(hunk.after for hunk in hunks)):
            raise self._corrupt(f"{path} is said to be deleted, yet has lines after", line)
        index = _INDEX.fullmatch(marks.get(b"index", b""))
        if index and not hunks and index[1] != index[2]:
            full = [side for side, gone in zip(index.groups()[:2], (diff.new, diff.deleted),
                    strict=True) if not gone]  # fmt: skip
            if not (diff.new or diff.deleted) or not full[0].startswith(_EMPTY):
                raise self._corrupt(f"the lines of {path} that its index names are missing", line)
        likeness = marks.get(b"similarity index", b"100%")
        if diff.old and not hunks and likeness != b"100%":
            raise self._corrupt(f"{path} differs from {diff.old}, yet no lines follow", line)
        if diff.mode == LINK and diff.new and not hunks:
            raise self._corrupt(f"{path} is a link to nothing", line)

    def _marks(self) -> dict[bytes, bytes]:
        """git's extended header lines: the mark -> the rest of its line."""
        found: dict[bytes, bytes] = {}
        while True:
            line = self._peek().rstrip(b"\r\n")
            mark = next((m for m in _MARKS if line == m or line.startswith(m + b" ")), None)
            if mark is None:
                return found
            found[mark] = self._header_line()[len(mark) + 1 :]

    def _refuse(self, marks: dict[bytes, bytes], line: int) -> None:
        if marks.keys() & {b"Binary files", b"GIT binary patch"}:
            fix = "patch the source that the binary is built from"
            raise self._error("binary", "binary patches are refused", fix=fix, line=line)
        modes = [marks[mark] for mark in marks if mark.endswith(b"mode")]
        if _SUBMODULE in (*modes, marks.get(b"index", b"")[-6:]):
            fix = "write the files themselves into the patch"
            raise self._error("not-a-file", "submodules are refused", fix=fix, line=line)
        if odd := [mode for mode in modes if mode not in _MODES]:
            why = f"it says {odd[0].decode(errors='replace')!r}; files have 100644 or 100755"
            raise self._error("mode", "the patch gives a file an odd mode", why=why, line=line)

    def _modes(
        self, marks: dict[bytes, bytes], new: bool, deleted: bool, line: int
    ) -> tuple[int | None, int | None]:
        """The modes before and after, where the patch speaks of them."""
        if (b"old mode" in marks) != (b"new mode" in marks):
            raise self._corrupt("it has an old mode or a new mode, and not both", line)
        if b"old mode" in marks:
            if new or deleted:
                raise self._corrupt("a file that is new or deleted has no change of modes", line)
            old, mode = _MODES[marks[b"old mode"]], _MODES[marks[b"new mode"]]
            if old == mode or LINK in (old, mode):
                why = "a file becomes a link by being deleted and added anew, in two patches"
                raise self._error("mode", "this is no change of a file's mode", why, line=line)
            return old, mode
        if new:
            return None, _MODES[marks.get(b"new file mode", b"%o" % FILE)]
        if deleted:
            return _MODES[marks.get(b"deleted file mode", b"%o" % FILE)], None
        link = LINK if marks.get(b"index", b"").endswith(b" %o" % LINK) else None
        return link, link

    # ---- names

    def _paths(
        self, header: bytes, marks: dict[bytes, bytes], names: tuple[bytes, bytes], line: int
    ) -> tuple[str, str]:
        """The plain paths before and after; only a rename's or a copy's are two."""
        moved = self._moved(marks, line)
        pairs = [names] if names[0] else []
        pairs += [self._header_names(header, moved)] if header else []
        sides = [(name, mark) for pair in pairs for name, mark in zip(pair, b"ab", strict=True)]
        marked = [(name, mark) for name, mark in sides if name != _NOWHERE]
        if not marked or not all(name.startswith(b"%c/" % mark) for name, mark in marked):
            why = "it says " + ", ".join(repr(name.decode(errors="replace")) for name, _ in marked)
            what = "names in the patch do not begin with a/ and b/"
            raise self._error("prefix", what, why, "use git's default prefixes", line)
        old, new = ({name[2:] for name, mark in marked if mark == side} for side in b"ab")
        if moved:
            old.add(moved[0])
            new.add(moved[1])
        else:
            old = new = old | new
        if len(old) > 1 or len(new) > 1 or (moved and old == new):
            both = sorted(name.decode(errors="replace") for name in old | new)
            raise self._corrupt(f"its header lines name different files: {both}", line)
        return self._plain(min(old), line), self._plain(min(new), line)

    def _moved(self, marks: dict[bytes, bytes], line: int) -> tuple[bytes, bytes] | None:
        """Both paths of a rename or a copy."""
        kinds = [kind for kind in (b"rename", b"copy")
                 if {kind + b" from", kind + b" to"} & marks.keys()]  # fmt: skip
        if not kinds:
            return None
        ends = [marks.get(kinds[0] + end, b"") for end in (b" from", b" to")]
        if len(kinds) > 1 or not all(ends):
            raise self._corrupt("it does not say both ends of a rename or a copy", line)
        old, new = (self._quoted(e)[0] if e.startswith(b'"') else e for e in ends)
        return old, new

    def _header_names(
        self, header: bytes, moved: tuple[bytes, bytes] | None
    ) -> tuple[bytes, bytes]:
        """Both names of a `diff --git` line. But for renames they are equally long."""
        rest = header.removeprefix(b"diff --git ")
        if rest.startswith(b'"'):
            old, rest = self._quoted(rest)
        else:
            cut = len(moved[0]) + 2 if moved else len(rest) // 2
            old, rest = rest[:cut], rest[cut:]
        new = rest[1:]
        return old, self._quoted(new)[0] if new.startswith(b'"') else new

    def _plain(self, name: bytes, line: int) -> str:
        """The name as text. Raises patch.outside for one that could lead anywhere."""
        try:
            path = name.decode()
        except UnicodeDecodeError:
            path = ""
        odd = any(part in ("", ".", "..") for part in path.split("/"))
        if odd or "\0" in path or "\\" in path:
            raise self._outside(name.decode(errors="backslashreplace"), line)
        return path

    def _check_inside(self, path: str, line: int) -> None:
        if not path.startswith("vllm/"):
            raise self._outside(path, line)
        if path.endswith(LEFT_OVER):
            why = "patch(1), merges and editors leave such files behind"
            raise self._error("left-over", f"the patch names {path}, a left-over", why, line=line)

    def _outside(self, path: str, line: int) -> BadInput:
        what = f"{path!r} is not a plain path inside vllm/"
        why = "a patch may touch files of the vllm package, and nothing else"
        fix = "take it out, or name it under leave_out in patch.yaml (tests, docs)"
        return self._error("outside", what, why, fix, line)


def _written(diff: FileDiff) -> set[str]:
    """The paths that are others afterwards; a copy only reads its source."""
    return {diff.path} | ({diff.old} if diff.old and not diff.copied else set())
