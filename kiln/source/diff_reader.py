"""What every unified diff is made of, read line by line: names, hunks, and nothing guessed.

The reader of whole patches is `kiln.source.diff`; this is its lower half.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kiln.errors import BadInput

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPES = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


@dataclass(frozen=True)
class Hunk:
    """One hunk.

    line: of its header in the patch, from 1. start, new_start: index (from 0) of the
    first line that it covers, before and after. before, after: those lines, with their
    line ends. tags: what each line of the hunk is, b" " (stays), b"-" or b"+".
    """

    line: int
    start: int
    new_start: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    tags: bytes

    @property
    def above(self) -> int:
        """How many lines of context it begins with."""
        return len(self.tags) - len(self.tags.lstrip(b" "))

    @property
    def below(self) -> int:
        """How many lines of context it ends with."""
        return len(self.tags) - len(self.tags.rstrip(b" "))

    def added(self) -> list[bytes]:
        """The lines that it adds."""
        tags = self.tags.replace(b"-", b"")
        return [line for tag, line in zip(tags, self.after, strict=True) if tag == ord("+")]


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only a line feed ends a line (a lone CR does not)."""
    return _LINE.findall(data)


class DiffReader:
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

    # ---- names

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
        return Hunk(line, start, new_start, tuple(before), tuple(after), tags)

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
