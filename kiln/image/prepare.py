"""A pin made ready to be planned or built: its lock read, refused if stale, and identified.

Nothing here imports what does the work: when nothing has changed, this is all that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.errors import BadInput, CannotHere
from kiln.graph.action import Locked
from kiln.graph.build import Fetcher
from kiln.image.identity import Identity, identify
from kiln.image.local import local_part, local_series
from kiln.lock.compare import stale, stale_error
from kiln.lock.file import locks_path, read_lock
from kiln.lock.model import Encoder, Local, Lock
from kiln.lock.request import request
from kiln.pins.load import Project
from kiln.pins.model import Pin
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Prepared:
    """A pin with its lock read and checked. local: today's, not the lock's."""

    name: str
    pin: Pin
    lock: Lock
    local: Local
    identity: Identity
    fetcher: Fetcher

    @property
    def where(self) -> str:
        """The lock's file, for messages."""
        return f"images/locks/{self.name}.lock"

    @property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The layer encoder of the lock, and today's."""
        today = self.local.encoder
        return (self.lock.local.encoder if self.lock.local else today, today)


@dataclass(frozen=True)
class LockFetcher:
    """Fetches what a lock and its repository name.

    Files of the repository (patches, scripts) carry their bytes; the rest is looked for
    where the user's own clients look.
    """

    project: Project
    lock: Lock
    store: Store
    reporter: Reporter

    def fetch(self, wanted: Sequence[Locked]) -> None:
        """Have all of these in the store."""
        for item in wanted:
            if isinstance(item.source, bytes):
                self.store.blobs.put(item.source)
        others = [item for item in wanted if not isinstance(item.source, bytes)]
        if not others:
            return
        # Imported here: a build with nothing to fetch must not pay for HTTP.
        from kiln.fetch.fetcher import StoreFetcher
        from kiln.fetch.settings import read_settings

        StoreFetcher(
            self.store,
            read_settings(),
            self.reporter,
            named=self.project.pins.indexes,
            suites=self.lock.resolved.suites,
        ).fetch(others)


def read_pin_lock(project: Project, name: str, pin: Pin) -> Lock:
    """The pin's lock, not stale. Raises BadInput("lock.missing" | "lock.stale" | ...)."""
    missing = project.recipe(pin.recipe).missing
    if missing:
        raise CannotHere(
            "build.not-supported",
            f"pin {name!r} cannot be built yet",
            where=project.where("pins", name),
            why=missing,
            fix=f"`kiln plan {name}` shows what a build would consist of",
        )
    path = locks_path(project.root, name)
    if not path.exists():
        raise BadInput(
            "lock.missing",
            f"pin {name!r} has no lock",
            where=str(path.relative_to(project.root)),
            fix=f"run `kiln lock {name}` (it needs a network) and commit the file it writes",
        )
    lock = read_lock(path)
    if changes := stale(lock.resolved.request, request(project, pin)):
        raise stale_error(name, str(path.relative_to(project.root)), changes)
    return lock


def prepare(
    project: Project, name: str | None, store: Store, reporter: Reporter, *, fetch: bool
) -> Prepared:
    """Read and check a pin's lock, and find today's local part and identity.

    fetch: the patch series is applied where the lock does not know its result yet;
    otherwise (a plan) its files are unknown then, and their actions shown as to do.
    """
    name = name or project.pins.default
    pin = project.pin(name)
    lock = read_pin_lock(project, name, pin)
    fetcher = LockFetcher(project, lock, store, reporter)
    series = local_series(project, name, pin, lock, store, fetcher if fetch else None, reporter)
    local = local_part(project, pin, series)
    identity = identify(name, pin, lock.resolved, local)
    return Prepared(name, pin, lock, local, identity, fetcher)
