"""The store: blobs by digest, and the table of what made them.

Layout below the root (XDG data, or KILN_STORE):

    blobs/sha256/<hex>   every blob; with oci-layout and index.json an OCI image layout
    actions.db           key of an action -> digests of its outputs; evidence by digest
    roots/<hex>/         file trees unpacked from blobs for the sandbox; a cache
    partial/<hex>        downloads to be resumed
    tmp/                 files being written; swept when nobody builds
    lock                 shared while building, exclusive while collecting

It holds what was promoted, so it is data and no cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kiln.errors import CannotHere, Damaged
from kiln.store.blobs import BlobStore, BlobWriter
from kiln.store.table import ActionTable

__all__ = ["ActionTable", "BlobStore", "BlobWriter", "Store", "default_root"]


def default_root() -> Path:
    """KILN_STORE, or kiln's folder in XDG data."""
    if configured := os.environ.get("KILN_STORE"):
        return Path(configured).expanduser().absolute()
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data) / "kiln"
    return Path.home() / ".local" / "share" / "kiln"


class Store:
    """One store on disk. Opening it creates what is missing and checks who owns it."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        alternates = [
            Path(part) for part in os.environ.get("KILN_ALTERNATES", "").split(os.pathsep) if part
        ]
        self.blobs = BlobStore(self.root, alternates)
        self.roots, self.partial = self.root / "roots", self.root / "partial"
        try:
            for directory in (self.blobs.dir, self.blobs.tmp, self.roots, self.partial):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotHere(
                "store.cannot-create",
                "the store cannot be created",
                where=str(self.root),
                why=str(error),
                fix="set KILN_STORE to a folder that you may write",
            ) from error
        owner = self.root.stat().st_uid
        if owner != os.geteuid():
            raise Damaged(
                "store.foreign-owner",
                "the store belongs to another user",
                where=str(self.root),
                why=f"owner is uid {owner}, you are uid {os.geteuid()}",
                fix="run as that user, or set KILN_STORE to a folder of your own",
            )
        self.actions = ActionTable(self.root / "actions.db")

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Hold the store for a build: others may build too, nobody may collect."""
        with self._flock(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Hold the store alone. Raises CannotHere("store.busy") while a build runs."""
        with self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    @contextlib.contextmanager
    def _flock(self, how: int) -> Iterator[None]:
        with (self.root / "lock").open("a") as handle:
            try:
                fcntl.flock(handle, how)
            except BlockingIOError as error:
                raise CannotHere(
                    "store.busy",
                    "another kiln process is using the store",
                    where=str(self.root),
                    fix="wait until it is done",
                ) from error
            yield

    def sweep(self) -> None:
        """Remove what crashed writers left in tmp, if nobody else builds now."""
        with contextlib.suppress(CannotHere), self.collecting():
            for path in self.blobs.tmp.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
