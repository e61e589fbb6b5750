"""The canonical tar writer: the same entries give the same bytes, everywhere.

POSIX.1-1988 ustar headers (uid = gid = 0, no user names, one integer mtime), with
POSIX.1-2001 pax records `path`, `linkpath` and `size` only for what ustar cannot
hold. The pax header's own name is constant: no process ids, no times.
"""

from __future__ import annotations

import struct
from typing import Protocol

from kiln.source.entry import Entry

EPOCH = 315532800
"""1980-01-01T00:00:00Z in seconds: the mtime of everything in layers and trees.

It is also the first date that a zip can hold, so wheels made by Kiln have the same."""

BLOCK = 512

_MAX_SIZE = 0o77777777777  # 11 octal digits: 8 GiB - 1
_RECORD = 20 * BLOCK  # what tar programs round an archive up to
_ZEROS = bytes(_RECORD)
_USTAR = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_TYPES = {"file": b"0", "symlink": b"2", "dir": b"5"}


class SupportsWrite(Protocol):
    """Anything that takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Take these bytes, all of them."""


class TarWriter:
    """Writes entries, handed over in bytewise order of their paths, as a tar stream.

    Parent folders that no entry declared are written before their first child, once,
    with mode 0755. Raises ValueError for entries out of order, twice, or below
    something that is no folder: `kiln.source.entry.merge` has to have seen to that.
    """

    def __init__(self, out: SupportsWrite, mtime: int = EPOCH) -> None:
        if not 0 <= mtime <= _MAX_SIZE:
            raise ValueError(f"mtime {mtime} does not fit into a ustar header")
        self._out, self._mtime = out, b"%011o" % mtime
        self._folders = {""}
        self._others: set[str] = set()
        self._last = b""
        self.size = 0  # bytes written so far

    def add(self, entry: Entry) -> None:
        """Write one entry and its content.

        Raises BadInput("source.size-mismatch") if the content is longer or shorter
        than the entry says; the stream is then of no use.
        """
        key = entry.path.encode()
        if key <= self._last:
            raise ValueError(f"{entry.path!r} comes after {self._last.decode()!r}: not sorted")
        self._last = key
        self._parents(entry.path)
        if entry.kind == "dir":
            self._folders.add(entry.path)
            self._header(entry.path + "/", "dir", entry.mode, 0, "")
            return
        self._others.add(entry.path)
        if entry.kind == "symlink":
            # The mode of a link means nothing; 0777 is what lstat says of one.
            self._header(entry.path, "symlink", 0o777, 0, entry.target)
        else:
            self._header(entry.path, "file", entry.mode, entry.size, "")
            for block in entry.blocks():
                self._write(block)
            self._write(_ZEROS[: -entry.size % BLOCK])

    def close(self) -> None:
        """Write the end of the archive: two zero blocks, filled up to a record."""
        self._write(_ZEROS[: 2 * BLOCK])
        self._write(_ZEROS[: -self.size % _RECORD])

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self.size += len(data)

    def _parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent in self._folders:
            return
        missing = [parent]
        while (parent := parent.rpartition("/")[0]) not in self._folders:
            missing.append(parent)
        for folder in reversed(missing):
            if folder in self._others:
                raise ValueError(f"{path!r} lies below {folder!r}, which is no folder")
            self._folders.add(folder)
            self._header(folder + "/", "dir", 0o755, 0, "")

    def _header(self, path: str, kind: str, mode: int, size: int, target: str) -> None:
        records = b""
        if (split := _split(path)) is None:
            records += _record("path", path.encode())
            split = b"", path.encode("ascii", "replace")[:100]
        if not target.isascii() or len(target) > 100:
            records += _record("linkpath", target.encode())
        if size > _MAX_SIZE:
            records += _record("size", str(size).encode())
        if records:
            self._write(self._block(b"", b"././@PaxHeader", b"x", 0o644, len(records), b""))
            self._write(records + _ZEROS[: -len(records) % BLOCK])
        link = target.encode("ascii", "replace")[:100]
        prefix, name = split
        shown = size if size <= _MAX_SIZE else 0
        self._write(self._block(prefix, name, _TYPES[kind], mode, shown, link))

    def _block(
        self, prefix: bytes, name: bytes, kind: bytes, mode: int, size: int, link: bytes
    ) -> bytes:
        fields = [
            name,
            b"%07o" % (mode & 0o7777),
            b"0000000",  # uid
            b"0000000",  # gid
            b"%011o" % size,
            self._mtime,
            b" " * 8,  # the checksum counts its own field as blanks
            kind,
            link,
            b"ustar\x0000",  # magic and version
            b"",  # user name
            b"",  # group name
            b"0000000",  # device, major
            b"0000000",  # and minor
            prefix,
        ]
        fields[6] = b"%06o\0 " % sum(_USTAR.pack(*fields))
        return _USTAR.pack(*fields)


def _split(path: str) -> tuple[bytes, bytes] | None:
    """ustar's prefix and name, or None if the path needs a pax record."""
    if not path.isascii():
        return None
    raw = path.encode()
    if len(raw) <= 100:
        return b"", raw
    cut = raw.rfind(b"/", 0, min(156, len(raw) - 1))
    if cut <= 0 or len(raw) - cut - 1 > 100:
        return None
    return raw[:cut], raw[cut + 1 :]


def _record(key: str, value: bytes) -> bytes:
    """A pax record, "<length> key=value\\n", whose length counts its own digits."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest
