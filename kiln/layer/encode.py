"""The layer encoder: tar bytes in, a gzip blob and both its hashes out.

The blob's bytes depend on the compressor's version, on how much it is fed at once and
on what the processor can do, so all of that is fixed here, named in the lock, and
checked against a known answer before the first use. The diffID (sha256 of the tar)
depends on none of it. (gzip: RFC 1952; the header has no time, no name and OS "unknown".)
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from isal import __version__ as isal_version
from isal import isal_zlib

from kiln.canonical import Digest, sha256
from kiln.errors import CannotHere
from kiln.lock.model import Encoder
from kiln.store.blobs import BlobStore

BLOCK = 1 << 20
LEVEL = 1
ENCODER = Encoder("isal-gzip-1", isal_version, BLOCK)

_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # 2.3: deflate, no flags, mtime 0, OS 255
_AHEAD = 4  # blocks that may wait for the compressor; what bounds the memory

# sha256 of what `ENCODER` makes of `known_pattern()`. A new isal needs a new one, and
# gives every layer a new digest (the diffIDs stay).
KNOWN_ANSWER = "00852d3a0c244476c810253a1af1f781d0fe36186e6c24440eaa9ca89c8faf90"


class SupportsWrite(Protocol):
    """Anything that takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Take these bytes, all of them."""


class Gzip:
    """A gzip stream, fed blocks of exactly BLOCK bytes and one last, shorter one."""

    def __init__(self, out: SupportsWrite) -> None:
        self._out = out
        self._deflate = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, -15)
        self._crc, self._size = 0, 0
        out.write(_HEADER)

    def block(self, data: bytes) -> None:
        """Compress one block."""
        self._crc = isal_zlib.crc32(data, self._crc)
        self._size += len(data)
        if packed := self._deflate.compress(data):
            self._out.write(packed)

    def finish(self) -> None:
        """Write what is left, and the trailer (2.3.1: CRC and size modulo 2^32)."""
        trailer = struct.pack("<LL", self._crc, self._size & 0xFFFFFFFF)
        self._out.write(self._deflate.flush() + trailer)


class Encoding:
    """A layer being encoded: see `encode`.

    After the `with` block: diff_id, the tar's sha256 (hex); tar_size, in bytes; blob.
    """

    def __init__(self, gzip: Gzip, pool: ThreadPoolExecutor) -> None:
        self._gzip, self._pool = gzip, pool
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._held = 0
        self._pending: collections.deque[Future[None]] = collections.deque()
        self.tar_size = 0
        self.diff_id = ""
        self.blob: Digest

    def write(self, data: bytes) -> int:
        """Take bytes of the tar, however many; returns their count."""
        self._parts.append(data)
        self._held += len(data)
        if self._held >= BLOCK:
            held = memoryview(b"".join(self._parts))
            while len(held) >= BLOCK:
                self._submit(bytes(held[:BLOCK]))
                held = held[BLOCK:]
            self._parts, self._held = [bytes(held)], len(held)
        return len(data)

    def finish(self) -> None:
        """Encode what is held and wait for the compressor."""
        self._submit(b"".join(self._parts))
        while self._pending:
            self._pending.popleft().result()
        self._gzip.finish()
        self.diff_id = self._hash.hexdigest()

    def _submit(self, block: bytes) -> None:
        self._pending.append(self._pool.submit(self._gzip.block, block))
        self._hash.update(block)
        self.tar_size += len(block)
        if len(self._pending) > _AHEAD:
            self._pending.popleft().result()


@contextlib.contextmanager
def encode(blobs: BlobStore) -> Iterator[Encoding]:
    """Write one layer blob: `write` its tar inside the `with` block.

    Compressing and writing run in a second thread while the caller's makes and hashes
    the tar. An exception drops the blob. Raises CannotHere("layer.encoder").
    """
    check_known_answer()
    with blobs.writer() as out, ThreadPoolExecutor(1, "kiln-encode") as pool:
        encoding = Encoding(Gzip(out), pool)
        yield encoding
        encoding.finish()
    encoding.blob = out.digest


def known_pattern() -> bytes:
    """2.4 MB that exercise a compressor: noise, text, numbers and zeros."""
    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(4096))
    text = b"".join(b"def f%d(x): return x * %d\n" % (n, n * n % 7919) for n in range(40000))
    numbers = b"".join(struct.pack("<LL", n, n * n & 0xFFFF) for n in range(60000))
    return noise + text + numbers + bytes(500_000) + noise[:4000] * 50


def known_answer() -> str:
    """Hex sha256 of what this machine's encoder makes of `known_pattern()`."""
    made: list[bytes] = []

    class Collect:
        def write(self, data: bytes, /) -> None:
            made.append(data)

    gzip, pattern = Gzip(Collect()), known_pattern()
    for start in range(0, len(pattern), BLOCK):
        gzip.block(pattern[start : start + BLOCK])
    gzip.finish()
    return sha256(b"".join(made))


@functools.cache
def check_known_answer() -> None:
    """Whether the encoder here gives the bytes that locks expect; asked once a process.

    Raises CannotHere("layer.encoder"): another build of isal, or another kind of
    processor, would give every layer another digest.
    """
    if (found := known_answer()) != KNOWN_ANSWER:
        raise CannotHere(
            "layer.encoder",
            f"the layer encoder here ({ENCODER.name} {ENCODER.version}) gives other bytes",
            why=f"a known pattern encodes to {found[:12]}..., expected {KNOWN_ANSWER[:12]}...; "
            "layers made here would have other digests, though their diffIDs would be the same",
            fix="install the isal that pyproject.toml names, on an x86-64 processor with SSE4.2",
        )
