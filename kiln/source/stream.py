"""Readable files over parts of other files: what the openers of entries return."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

CHUNK = 1 << 20


class _Reader(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes], close: Callable[[], None]) -> None:
        self._blocks, self._close = blocks, close
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """`size` bytes, or fewer where the content ends; all that are left without one."""
        parts, left = [], -1 if size is None else size
        while left and (self._rest or self._next()):
            part = self._rest if left < 0 else self._rest[:left]
            self._rest = self._rest[len(part) :]
            left -= len(part) if left > 0 else 0
            parts.append(part)
        if len(parts) == 1 and isinstance(whole := parts[0].obj, bytes):
            return whole if len(whole) == len(parts[0]) else bytes(parts[0])
        return b"".join(parts)

    def _next(self) -> bool:
        self._rest = memoryview(next(self._blocks, b""))
        return bool(self._rest)

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer; returns how many bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file below; twice does no harm."""
        self._close()
        super().close()


def reader(blocks: Iterator[bytes], close: Callable[[], None]) -> BinaryIO:
    """A binary file, for reading forward, over blocks (none of them empty)."""
    return cast(BinaryIO, _Reader(blocks, close))


def open_slice(path: Path, start: int, size: int) -> BinaryIO:
    """`size` bytes of a file from offset `start`. Each call opens the file anew, so
    that threads do not meet. A file that is shorter than it was ends early."""
    file = path.open("rb", buffering=0)
    file.seek(start)

    def blocks() -> Iterator[bytes]:
        left = size
        while left and (block := file.read(min(CHUNK, left))):
            left -= len(block)
            yield block

    return reader(blocks(), file.close)
