"""Immutable blobs by sha256, in the folder shape of an OCI image layout.

`<root>/blobs/sha256/<hex>` is what the OCI image-layout spec prescribes, so the
store is at the same time a layout that other tools can read. A blob is written
to a temporary name, synced, hashed as it goes, and renamed: a reader sees all
of it or none of it, whatever the writer's end was.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from kiln.canonical import Digest, is_sha256, sha256
from kiln.errors import CannotHere, Damaged

CHUNK = 1 << 20


def no_space(error: OSError, where: Path) -> CannotHere | None:
    """The error for a full disk or quota, or None where the OSError is another."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    return full_disk(where, os.strerror(error.errno))


def full_disk(where: Path, why: str) -> CannotHere:
    """The error for a full disk or quota."""
    return CannotHere(
        "store.no-space",
        "no space left for the store",
        where=str(where),
        why=why,
        fix="free some space, or point KILN_STORE at a larger disk; nothing half-written was kept",
    )


class BlobWriter:
    """A blob being written. Leaving the `with` block commits it; an exception drops it.

    `digest` is known after the block. Where `expect` was given, another content is
    refused with Damaged("store.unexpected-content") and nothing is kept.
    """

    def __init__(self, blobs: BlobStore, expect: Digest | None = None) -> None:
        self._blobs, self._expect = blobs, expect
        self._hash, self._size = hashlib.sha256(), 0
        self.digest: Digest

    def __enter__(self) -> BlobWriter:
        fd, name = tempfile.mkstemp(prefix="blob-", dir=self._blobs.tmp)
        self._path, self._file = Path(name), os.fdopen(fd, "wb", buffering=CHUNK)
        return self

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; returns their count."""
        try:
            self._file.write(data)
        except OSError as error:
            raise (no_space(error, self._path) or error) from error
        self._hash.update(data)
        self._size += len(data)
        return len(data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:
                return
            self._file.flush()
            self.digest = Digest(self._hash.hexdigest(), self._size)
            if self._expect is not None and self.digest != self._expect:
                raise Damaged(
                    "store.unexpected-content",
                    "content is not what was asked for",
                    why=f"expected {self._expect} ({self._expect.size} bytes), "
                    f"got {self.digest} ({self.digest.size} bytes)",
                )
            os.fchmod(self._file.fileno(), 0o444)
            os.fdatasync(self._file.fileno())
            self._file.close()
            self._blobs.adopt(self._path, self.digest.sha256)
        except OSError as error:
            raise (no_space(error, self._path) or error) from error
        finally:
            # A close after a failed write may fail again on the same buffer.
            with contextlib.suppress(OSError):
                self._file.close()
            self._path.unlink(missing_ok=True)


class BlobStore:
    """Blobs below one root, and read-only `alternates` (other stores' roots).

    A blob that only an alternate has is read from there, as in git.
    """

    def __init__(self, root: Path, alternates: Sequence[Path] = ()) -> None:
        self.root, self.alternates = root, tuple(alternates)
        self.dir = root / "blobs" / "sha256"
        self.tmp = root / "tmp"

    def _find(self, sha: str) -> Path | None:
        if not is_sha256(sha):
            raise ValueError(f"not a sha256: {sha!r}")
        for directory in (self.dir, *(a / "blobs" / "sha256" for a in self.alternates)):
            path = directory / sha
            if path.is_file():
                return path
        return None

    def has(self, digest: Digest) -> bool:
        """Whether the blob is there with the size its digest says (no hashing)."""
        path = self._find(digest.sha256)
        return path is not None and path.stat().st_size == digest.size

    def path(self, sha: str) -> Path:
        """The blob's file, for reading. Raises Damaged("store.missing-blob")."""
        path = self._find(sha)
        if path is None:
            raise Damaged(
                "store.missing-blob",
                f"the store has no blob sha256:{sha}",
                where=str(self.dir),
                fix="run `kiln fsck`; it forgets results whose blobs are gone, "
                "and the next build makes them again",
            )
        return path

    def open(self, sha: str) -> BinaryIO:
        """The blob as a binary file, for reading."""
        return self.path(sha).open("rb")

    def read(self, sha: str) -> bytes:
        """A small blob's bytes, verified. Raises Damaged("store.corrupt-blob")."""
        data = self.path(sha).read_bytes()
        if sha256(data) != sha:
            raise corrupt(self.path(sha), sha256(data))
        return data

    def writer(self, expect: Digest | None = None) -> BlobWriter:
        """A context manager that writes one blob."""
        return BlobWriter(self, expect)

    def put(self, data: bytes) -> Digest:
        """Store bytes."""
        with self.writer() as out:
            out.write(data)
        return out.digest

    def put_file(self, path: Path) -> Digest:
        """Store a copy of a file."""
        with path.open("rb") as source, self.writer() as out:
            while chunk := source.read(CHUNK):
                out.write(chunk)
        return out.digest

    def adopt(self, path: Path, sha: str) -> None:
        """Rename a finished, synced, already hashed file of this file system into place.

        Two writers of one blob have the same bytes, so the last rename may win.
        """
        target = self.dir / sha
        os.replace(path, target)
        fd = os.open(self.dir, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def __iter__(self) -> Iterator[str]:
        """The hex names of this store's own blobs, in order."""
        yield from sorted(entry.name for entry in os.scandir(self.dir) if is_sha256(entry.name))

    def remove(self, sha: str) -> None:
        """Delete one blob of this store, if it is there."""
        (self.dir / sha).unlink(missing_ok=True)


def corrupt(path: Path, found: str) -> Damaged:
    """The error for a blob whose bytes are not its name."""
    return Damaged(
        "store.corrupt-blob",
        "a blob's bytes are not what its name says",
        where=str(path),
        why=f"the bytes hash to sha256:{found}",
        fix="run `kiln fsck`; it sets damaged blobs aside, "
        "and the next build fetches or makes them again",
    )
