"""The operator schemas in a compiled library, found without loading it.

A library hands its schemas to torch as text, so they lie, each ended by a NUL, among the
constants of the file: "rms_norm(Tensor! result, Tensor input, float epsilon) -> ()". The
file is read once, as a stream, in constant memory: the program headers at its start tell
which parts hold constants (mapped, not writable). The library is hostile input: every
count and length in it is bounded, and whatever does not look like a schema is no schema.

Operators that a library registers without writing out their schemas do not show, and those
of a namespace stand there without it.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import BinaryIO

from kiln.errors import BadInput

_CHUNK = 1 << 20
_MAX_HEADERS = 256  # program headers; compilers make about a dozen
_MAX_TEXT = 16 << 10  # bytes of one schema; the longest has 1.3 kB
_MAX_SCHEMAS = 20_000  # of one library; vLLM's largest has 120
_MAX_START = 1 << 16  # bytes before the end of the program headers
_MAX_ARROWS = 1 << 20  # places that may be in a schema; 200 MB of code have 10 thousand

_HEAD = struct.Struct("<16sHHIQQQIHHH")  # e_ident .. e_phnum
_PROGRAM = struct.Struct("<IIQQQQQQ")
_LOAD, _WRITABLE = 1, 2

_ARROW = re.compile(rb"\)\s{0,8}->")
_NAME = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)?(?:\.\w+)?")
# "Tensor(a!)", "Tensor!", "int[]", "str?", "Tensor[](a!)?", "__torch__.torch.classes._C.X"
_TYPE = r"[A-Za-z_][\w.]*(?:!|\?|\[\w*\]|\([^()\s]*\))*"
_ARGUMENT = re.compile(rf"{_TYPE}(?:\s+\w+(?:\s*=.+)?)?", re.DOTALL)
_MARK = re.compile(r"\s+!(?=\w)")  # "Tensor !out", which torch reads as "Tensor! out"
_PLATFORMS = ((b"libcudart", "cuda"), (b"libtorch_cuda", "cuda"), (b"libamdhip", "rocm"),
              (b"libtorch_hip", "rocm"), (b"libsycl", "xpu"), (b"libtorch_xpu", "xpu"))  # fmt: skip


@dataclass(frozen=True)
class Library:
    """schemas: as they stand, blanks made even, sorted. platform: "cuda", "rocm", "xpu",
    or "cpu" for a library that names none of their run times."""

    schemas: tuple[str, ...]
    platform: str


def read_library(stream: BinaryIO, where: str) -> Library:
    """Read a library to its end (a stream that verifies what it hands out has then done
    so). Raises BadInput("drift.elf") for what is no 64-bit little-endian ELF file, or has
    more in it than any honest one; `where` names the file."""
    head = _read(stream, _HEAD.size)
    ranges, rest = _constants(stream, head, where)
    scanner = _Scanner(where)
    at, data = 0, head + rest
    while data:
        for number, (first, last) in enumerate(ranges):
            if first < at + len(data) and last > at:
                part = data[max(first - at, 0) : last - at]
                scanner.feed(part, first >= at)
                if number == 0:
                    scanner.needs(part)
        at += len(data)
        data = stream.read(_CHUNK)
    if any(last > at for _, last in ranges):
        raise _bad(where, "a part of it reaches beyond the end of the file")
    return scanner.library()


def _read(stream: BinaryIO, size: int) -> bytes:
    """Just so many bytes, or fewer at the end of the stream."""
    parts: list[bytes] = []
    while size and (data := stream.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _constants(stream: BinaryIO, head: bytes, where: str) -> tuple[list[tuple[int, int]], bytes]:
    """The ranges of the file that are mapped and not writable, sorted, and the bytes that
    were read to find them."""
    if len(head) < _HEAD.size or head[:6] != b"\x7fELF\2\1":
        raise _bad(where, "it is no 64-bit little-endian ELF file")
    *_, table, _, _, _, size, count = _HEAD.unpack(head)
    end = table + size * count
    if (
        size != _PROGRAM.size
        or count > _MAX_HEADERS
        or not _HEAD.size <= table <= end <= _MAX_START
    ):
        raise _bad(where, f"{count} program headers of {size} bytes at {table}")
    rest = _read(stream, end - _HEAD.size)
    if len(rest) < end - _HEAD.size:
        raise _bad(where, "it ends within its program headers")
    found: list[tuple[int, int]] = []
    for index in range(count):
        kind, flags, offset, _, _, length, _, _ = _PROGRAM.unpack_from(
            rest, table - _HEAD.size + index * size
        )
        if kind == _LOAD and not flags & _WRITABLE and length:
            found.append((offset, offset + length))
    found.sort()
    if any(a[1] > b[0] for a, b in itertools.pairwise(found)):
        raise _bad(where, "its parts overlap")
    return found, rest


def _bad(where: str, why: str) -> BadInput:
    return BadInput(
        "drift.elf",
        "a compiled library cannot be read",
        where=where,
        why=why,
        fix="use the file as its publisher made it",
    )


class _Scanner:
    """Looks for schemas in parts of a file that come in pieces."""

    def __init__(self, where: str) -> None:
        self._where, self._tail, self._arrows = where, b"", 0
        self._found: set[str] = set()
        self._platforms: set[str] = set()

    def feed(self, data: bytes, fresh: bool) -> None:
        """More of a part; `fresh`: its start."""
        # What the last piece had in full is found again, and is in the set already.
        text = b"\0" + data if fresh else self._tail + data
        done = 0
        for match in _ARROW.finditer(text):
            arrow = match.start()
            self._arrows += 1
            if arrow < done:
                continue
            begin = text.rfind(b"\0", max(done, arrow - _MAX_TEXT), arrow) + 1
            end = text.find(b"\0", arrow, arrow + _MAX_TEXT)
            if begin and end >= 0:
                self._add(text[begin:end])
            done = max(end, match.end())
        if self._arrows > _MAX_ARROWS:
            raise _bad(self._where, f"more than {_MAX_ARROWS} places look like schemas")
        self._tail = text[-2 * _MAX_TEXT :]

    def needs(self, data: bytes) -> None:
        """More of the part in which the names of other libraries stand."""
        self._platforms |= {platform for name, platform in _PLATFORMS if name in data}

    def _add(self, data: bytes) -> None:
        schema = parse_schema(data.decode("ascii", "replace"))
        if schema:
            self._found.add(schema)
            if len(self._found) > _MAX_SCHEMAS:
                raise _bad(self._where, f"it has more than {_MAX_SCHEMAS} schemas")

    def library(self) -> Library:
        """What was found."""
        platforms = sorted(self._platforms) or ["cpu"]
        return Library(tuple(sorted(self._found)), "+".join(platforms))


def parse_schema(text: str) -> str:
    """A schema with its blanks made even, "" for a text that is none."""
    head, _, rest = text.strip().partition("(")
    end = _closing(rest)
    arrow, results = rest[end + 1 :].lstrip()[:2], rest[end + 1 :].lstrip()[2:].strip()
    if end < 0 or arrow != "->" or _NAME.fullmatch(head) is None:
        return ""
    inside = _even(rest[:end])
    if results.startswith("(") and _closing(results[1:]) == len(results) - 2:
        returned = _even(results[1:-1])
        shown = None if returned is None else f"({', '.join(returned)})"
    else:
        shown = results if re.fullmatch(_TYPE, results) else None
    if inside is None or shown is None:
        return ""
    return f"{head}({', '.join(inside)}) -> {shown}"


def _closing(text: str) -> int:
    """Where the bracket that stands open before the text is closed, -1 if nowhere."""
    depth = 1
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return -1


def _even(text: str) -> list[str] | None:
    """The parts of a list with their blanks made even; None if one is no argument."""
    if not text.strip():
        return []
    parts = [_MARK.sub("! ", " ".join(part.split())) for part in _split(text)]
    good = all(part == "*" or _ARGUMENT.fullmatch(part) for part in parts)
    return parts if good else None


def _split(text: str) -> list[str]:
    """At the commas that stand outside of brackets and quotes."""
    parts, depth, start, quote = list[str](), 0, 0, ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
