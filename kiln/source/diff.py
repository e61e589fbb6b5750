"""Unified diffs, read strictly and as bytes.

Two forms are read: what `git format-patch` and `git diff` write, and plain
`--- a/x` `+++ b/x` diffs. The format is that of git-diff(1), "GENERATING PATCH TEXT
WITH -P", less everything that has to be guessed: a hunk has exactly the lines that
its header counts, and between two files stands nothing but a mail's ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kiln.errors import BadInput, KilnError, raise_problems

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPES = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
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
# Errors after which the rest of a patch cannot be trusted to be what it looks like.
_FATAL = ("patch.corrupt", "patch.line-endings")


@dataclass(frozen=True)
class Hunk:
    """One hunk.

    line: of its header in the patch, from 1. start, new_start: index (from 0) of the
    first line that it covers, before and after. before, after: those lines, with their
    line ends. above, below: how many lines of context it begins and ends with.
    """

    line: int
    start: int
    new_start: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    above: int
    below: int


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file. line: where that begins in the patch."""

    path: str
    line: int
    new: bool
    deleted: bool
    hunks: tuple[Hunk, ...]


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only a line feed ends a line (a lone CR does not)."""
    return _LINE.findall(data)


def parse(data: bytes, where: str) -> list[FileDiff]:
    """The files that a patch names, in its order; `where` names the patch in errors.

    Raises BadInput: patch.corrupt (counts, unknown or surplus lines, no file at all),
    patch.line-endings (the headers end in CRLF), patch.prefix (no a/ and b/),
    patch.outside (not a plain path inside vllm/), patch.binary, patch.rename,
    patch.mode, patch.not-a-file (links, submodules), patch.twice.
    """
    return _Parser(data, where).files()


class _Parser:
    """Reads from `_at` on; every method leaves `_at` behind what it has read."""

    def __init__(self, data: bytes, where: str) -> None:
        self._lines, self._at, self._where = split_lines(data), 0, where

    def _peek(self) -> bytes:
        """The line ahead, or b"" at the end (a line has at least its end)."""
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def _error(self, code: str, what: str, why: str = "", fix: str = "", line: int = 0) -> BadInput:
        where = f"{self._where}:{line or self._at + 1}"
        return BadInput(f"patch.{code}", what, where=where, why=why, fix=fix)

    def _corrupt(self, why: str, line: int = 0) -> BadInput:
        fix = "make the patch again with `git format-patch`; Kiln does not recount or guess"
        return self._error("corrupt", "the patch is corrupt", why, fix, line)

    # ---- the patch as a whole

    def files(self) -> list[FileDiff]:
        """Everything; see `parse`."""
        found: list[FileDiff] = []
        errors: list[KilnError] = []
        self._skip_mail()
        while self._peek():
            try:
                diff = self._file()
            except BadInput as error:
                if error.code in _FATAL:
                    raise
                errors.append(error)
                while self._peek() and not self._at_header():
                    self._at += 1
                continue
            if any(diff.path == other.path for other in found):
                what = f"the patch names {diff.path} twice"
                errors.append(self._error("twice", what, line=diff.line))
            found.append(diff)
            self._end_of_file()
        raise_problems(errors)
        if not found:
            raise self._corrupt("it names no file (`diff --git`, or `---` and `+++`)", 1)
        return found

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

    def _end_of_file(self) -> None:
        """What may follow a file: the next one, a mail's signature, a mail, the end."""
        signature = False
        while (line := self._peek()) and (signature or not self._at_header()):
            if line.startswith(b"From "):
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

    def _file(self) -> FileDiff:
        line, header, marks, old, new = self._at + 1, b"", dict[bytes, bytes](), b"", b""
        if self._peek().startswith(b"diff --git "):
            header = self._header_line()
            marks = self._marks()
        if self._peek().startswith(b"--- "):
            old, new = self._name_line(b"--- "), self._name_line(b"+++ ")
        self._refuse(marks, line)
        path = self._path(header, old, new, line)
        is_new, is_deleted = b"new file mode" in marks, b"deleted file mode" in marks
        if header and old and (is_new, is_deleted) != (old == _NOWHERE, new == _NOWHERE):
            raise self._corrupt(f"its lines do not agree on whether {path} is new or deleted", line)
        is_new, is_deleted = is_new or old == _NOWHERE, is_deleted or new == _NOWHERE
        hunks = tuple(self._hunks())
        if not hunks and not is_new and not is_deleted:
            raise self._corrupt(f"it names {path} and says nothing about it", line)
        if is_new and (len(hunks) > 1 or any(hunk.before for hunk in hunks)):
            raise self._corrupt(f"{path} is said to be new, yet has lines before", line)
        if is_deleted and (len(hunks) > 1 or any(hunk.after for hunk in hunks)):
            raise self._corrupt(f"{path} is said to be deleted, yet has lines after", line)
        return FileDiff(path, line, is_new, is_deleted, hunks)

    def _header_line(self) -> bytes:
        line = self._peek().removesuffix(b"\n")
        if line.endswith(b"\r"):
            raise self._error(
                "line-endings",
                "the patch file itself has CRLF line ends",
                "its header lines end in CR LF, as after a checkout with core.autocrlf",
                "restore it as it was made, and mark it `-text` in .gitattributes",
            )
        self._at += 1
        return line

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
        if any(m[:3] in (b"120", b"160") for m in (*modes, marks.get(b"index", b"")[-6:])):
            fix = "write the file itself into the patch"
            raise self._error("not-a-file", "links and submodules are refused", fix=fix, line=line)
        if b"old mode" in marks or any(mode != b"100644" for mode in modes):
            why = "a wheel's modes are its own; new files get 0644"
            raise self._error("mode", "changes of file modes are refused", why=why, line=line)
        if marks.keys() & {b"rename from", b"rename to", b"copy from", b"copy to"}:
            fix = "use `git format-patch --no-renames`"
            raise self._error("rename", "renames and copies are refused", fix=fix, line=line)

    # ---- names

    def _name_line(self, mark: bytes) -> bytes:
        if not self._peek().startswith(mark):
            raise self._corrupt(f"a line beginning with {mark.decode()!r} is missing here")
        rest = self._header_line()[len(mark) :]
        if rest.startswith(b'"'):
            return self._quoted(rest)[0]
        return rest.partition(b"\t")[0]  # a tab begins the date, or ends a name with blanks

    def _quoted(self, text: bytes) -> tuple[bytes, bytes]:
        """The C-quoted name at the start of the text, and what follows it."""
        match = _QUOTED.match(text)
        if match is None:
            raise self._corrupt("a quoted name has no end", self._at)

        def plain(escape: re.Match[bytes]) -> bytes:
            code = escape[1]
            if len(code) == 1 and code[0] not in _ESCAPES:
                raise self._corrupt(f"a quoted name has the unknown escape {escape[0]!r}", self._at)
            return bytes([int(code, 8) if len(code) == 3 else _ESCAPES[code[0]]])

        return _ESCAPE.sub(plain, match[1]), text[match.end() :]

    def _header_names(self, header: bytes) -> tuple[bytes, bytes]:
        """Both names of a `diff --git` line. Without renames they are equally long."""
        rest = header.removeprefix(b"diff --git ")
        if rest.startswith(b'"'):
            old, rest = self._quoted(rest)
            return old, self._quoted(rest[1:])[0]
        half = len(rest) // 2
        return rest[:half], rest[half + 1 :]

    def _path(self, header: bytes, old: bytes, new: bytes, line: int) -> str:
        pairs = [(old, new)] if old else []
        pairs += [self._header_names(header)] if header else []
        sides = [(name, mark) for pair in pairs for name, mark in zip(pair, b"ab", strict=True)]
        names = [(name, b"%c/" % mark) for name, mark in sides if name != _NOWHERE]
        if not names or not all(name.startswith(prefix) for name, prefix in names):
            why = "it says " + ", ".join(repr(name.decode(errors="replace")) for name, _ in names)
            what = "names in the patch do not begin with a/ and b/"
            raise self._error("prefix", what, why, "use git's default prefixes", line)
        plain = {name[2:] for name, _ in names}
        if len(plain) > 1:
            raise self._corrupt(f"its header lines name different files: {sorted(plain)}", line)
        name = plain.pop()
        try:
            path = name.decode()
        except UnicodeDecodeError:
            path = ""
        parts = path.split("/")
        odd = any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path
        if odd or parts[0] != "vllm" or len(parts) == 1:
            what = f"{name.decode(errors='backslashreplace')!r} is not a plain path inside vllm/"
            fix = "a patch may touch files of the vllm package, and nothing else"
            raise self._error("outside", what, fix=fix, line=line)
        return path

    # ---- hunks

    def _hunks(self) -> Iterator[Hunk]:
        end = shift = 0
        while self._peek().startswith(b"@@ "):
            hunk = self._hunk()
            if hunk.start < end:
                raise self._corrupt("the hunk starts above line 1, or within another", hunk.line)
            if hunk.new_start != hunk.start + shift:
                raise self._corrupt(
                    "the hunk's place after the patch does not follow from its place before: "
                    f"the hunks before it add {shift} lines",
                    hunk.line,
                )
            end = hunk.start + len(hunk.before)
            shift += len(hunk.after) - len(hunk.before)
            yield hunk

    def _hunk(self) -> Hunk:
        line, match = self._at + 1, _HUNK.match(self._peek())
        if match is None:
            raise self._corrupt("this is no hunk header (@@ -n,n +n,n @@)")
        start, count, new_start, new_count = (1 if n is None else int(n) for n in match.groups())
        self._at += 1
        tags, before, after = b"", list[bytes](), list[bytes]()
        while len(before) < count or len(after) < new_count:
            tag, content = self._hunk_line()
            tags += tag
            if tag != b"+":
                before.append(content)
            if tag != b"-":
                after.append(content)
        if len(before) > count or len(after) > new_count:
            raise self._corrupt(
                f"the hunk at line {line} says {count} old and {new_count} new lines, "
                f"but has {len(before)} and {len(after)} by here",
                self._at,
            )
        if any(not text.endswith(b"\n") for text in (*before[:-1], *after[:-1])):
            raise self._corrupt("a line without a newline is not the last of its hunk", line)
        if not tags.strip(b" "):
            raise self._corrupt("the hunk changes nothing", line)
        # A side that has no lines is placed by the line before it, so it is from 0 already.
        start, new_start = start - (count > 0), new_start - (new_count > 0)
        above = len(tags) - len(tags.lstrip(b" "))
        below = len(tags) - len(tags.rstrip(b" "))
        return Hunk(line, start, new_start, tuple(before), tuple(after), above, below)

    def _hunk_line(self) -> tuple[bytes, bytes]:
        """A line of a hunk: " ", "-" or "+", and its content with its line end."""
        text = self._peek()
        # GNU diff may leave out the blank before an empty line of context.
        tag, content = (b" ", text) if text == b"\n" else (text[:1], text[1:])
        if tag not in (b" ", b"-", b"+"):
            raise self._corrupt("the hunk ends here, before the lines that its header counts")
        if not content.endswith(b"\n"):
            raise self._corrupt("the patch ends within a line")
        self._at += 1
        if self._peek().startswith(b"\\ No newline"):
            self._at += 1
            content = content.removesuffix(b"\n")
        return tag, content
