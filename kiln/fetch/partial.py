"""A download under way: the part of a file that has come so far, and who may add to it.

`<store>/partial/<sha256>` holds the bytes, `<sha256>.json` beside it the validator of
the server that sent them. The holder has an exclusive flock on the file, so two
processes, or two threads, never write one partial file; whoever waited finds the blob.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kiln.canonical import Digest, dumps, sha256
from kiln.errors import CannotHere
from kiln.fetch.failures import Stopped
from kiln.progress import Reporter
from kiln.store import Store
from kiln.store.blobs import CHUNK, no_space


class _Sidecar(msgspec.Struct):
    """url: sha256 of the URL, which may be a signed one. validator: for If-Range."""

    url: str
    validator: str


class Partial:
    """The held partial file of one digest. size: bytes there, all of them hashed."""

    def __init__(self, store: Store, digest: Digest, path: Path, fd: int) -> None:
        self._store, self._digest, self._path, self._fd = store, digest, path, fd
        self._sidecar = path.with_suffix(".json")
        self._hash, self.size = hashlib.sha256(), 0
        if os.fstat(fd).st_size > digest.size:
            self.reset()
        while chunk := os.pread(fd, CHUNK, self.size):
            self._hash.update(chunk)
            self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """Hex sha256 of what is there."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Append. Raises CannotHere("store.no-space"); what fitted stays."""
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._fd, view, self.size)
            except OSError as error:
                raise (self._full(error) or error) from error
            self._hash.update(view[:count])
            self.size += count
            view = view[count:]

    def reset(self) -> None:
        """Forget what is there."""
        os.ftruncate(self._fd, 0)
        self._sidecar.unlink(missing_ok=True)
        self._hash, self.size = hashlib.sha256(), 0

    def remove(self) -> None:
        """Take the partial file away altogether."""
        self.reset()
        self._path.unlink(missing_ok=True)

    def remember(self, url: str, validator: str) -> None:
        """Keep the server's validator (a strong ETag, or Last-Modified) for If-Range."""
        if not validator:
            self._sidecar.unlink(missing_ok=True)
            return
        content = dumps({"url": sha256(url.encode()), "validator": validator})
        temporary = self._sidecar.with_suffix(".json.new")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self._sidecar)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise (self._full(error) or error) from error

    def validator(self, url: str) -> str:
        """The validator that came with these bytes from this URL, or ""."""
        try:
            known = msgspec.json.decode(self._sidecar.read_bytes(), type=_Sidecar)
        except (OSError, msgspec.DecodeError):
            return ""  # the hash decides in any case
        return known.validator if known.url == sha256(url.encode()) else ""

    def commit(self) -> None:
        """Make it a blob; size and hash have been compared with the digest before."""
        assert (self.sha256, self.size) == (self._digest.sha256, self._digest.size)
        try:
            os.fchmod(self._fd, 0o444)
            os.fdatasync(self._fd)
            self._store.blobs.adopt(self._path, self._digest.sha256)
        except OSError as error:
            raise (self._full(error) or error) from error
        self._sidecar.unlink(missing_ok=True)

    def _full(self, error: OSError) -> CannotHere | None:
        full = no_space(error, self._path)
        if full is not None:
            full.fix = (
                "free some space, or point KILN_STORE at a larger disk; "
                "what has been fetched stays, and the next try goes on from there"
            )
        return full


@contextlib.contextmanager
def hold(
    store: Store, digest: Digest, name: str, reporter: Reporter, stop: threading.Event
) -> Iterator[Partial | None]:
    """The partial file of a digest, held alone; None where the store has the blob (by now).

    Raises Stopped while it waits for another holder.
    """
    path = store.partial / digest.sha256
    fd = -1
    try:
        while not store.blobs.has(digest):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError as error:
                raise (no_space(error, path) or error) from error
            _lock(fd, name, reporter, stop)
            if _same_file(path, fd) and not store.blobs.has(digest):
                yield Partial(store, digest, path, fd)
                return
            # Another holder has made it a blob (or removed it) meanwhile: look again.
            os.close(fd)
            fd = -1
        yield None
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, name: str, reporter: Reporter, stop: threading.Event) -> None:
    told = False
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                reporter.note(f"{name}: waiting for another kiln that fetches it")
                told = True
            if stop.wait(0.1):
                raise Stopped from None


def _same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
