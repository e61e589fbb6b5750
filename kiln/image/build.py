"""Build a pin: lock in, image out, and the lock's parts kept true on the way.

The flow: read the lock; refuse it where it is stale; bring its local part up to date
(the patch series is applied once to know each file's image before and after); build;
compare the outputs with the lock's, or write them where the parts above changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere, JudgedBad
from kiln.graph.action import Locked
from kiln.graph.build import Fetcher, Results, build
from kiln.graph.plan import Plan, make_plan
from kiln.image.assemble import GOAL, Assembly, assemble
from kiln.image.identity import Identity, identify
from kiln.image.layout import name_image
from kiln.image.local import local_part, local_series
from kiln.image.oci import read_layers
from kiln.image.tools import BUBBLEWRAP, ensure_tool
from kiln.lock.compare import Change, compare_outputs, difference, stale, stale_error
from kiln.lock.file import locks_path, read_lock, write_lock
from kiln.lock.fingerprints import fingerprints, fingerprints_path, write_fingerprints
from kiln.lock.model import Local, Lock, Outputs
from kiln.lock.request import request
from kiln.pins.load import Project
from kiln.pins.model import Pin
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Built:
    """A built image. ran: how many actions had to run (0: nothing changed)."""

    pin: str
    manifest: Digest
    identity: Identity
    lock: Lock
    ran: int

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        assert self.lock.outputs is not None
        return {
            "pin": self.pin,
            "digest": str(self.manifest),
            "config": str(self.lock.outputs.config),
            "kiln_id": self.identity.id,
            "patch_set": self.identity.patch_set,
            "layers": msgspec.to_builtins(self.lock.outputs.layers),
            "actions_run": self.ran,
        }


@dataclass(frozen=True)
class Prepared:
    """A pin with its lock read and checked, and the graph that follows from both."""

    name: str
    pin: Pin
    lock: Lock
    local: Local
    identity: Identity
    assembly: Assembly


@dataclass(frozen=True)
class Planned:
    """What `kiln plan` shows: the plan, and what is not as the lock says."""

    pin: str
    plan: Plan
    changes: tuple[Change, ...]


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
            fix=f"`kiln show {name}` tells what is known of it",
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
    project: Project, name: str | None, store: Store, fetcher: Fetcher | None, reporter: Reporter
) -> Prepared:
    """Read and check a pin's lock and assemble its graph.

    With a fetcher, the patch series is applied where the lock does not know its result
    yet; without one (a plan), its files are unknown then, and their actions shown as to do.
    """
    name = name or project.pins.default
    pin = project.pin(name)
    lock = read_pin_lock(project, name, pin)
    series = local_series(project, name, pin, lock, store, fetcher, reporter)
    local = local_part(project, pin, series)
    identity = identify(name, pin, lock.resolved, local)
    assembly = assemble(project, pin, lock.resolved, local, identity)
    return Prepared(name, pin, lock, local, identity, assembly)


def plan_pin(project: Project, name: str | None, store: Store, reporter: Reporter) -> Planned:
    """What `build_pin` would do; nothing is fetched, run or written."""
    prepared = prepare(project, name, store, None, reporter)
    plan = make_plan(store, prepared.assembly.graph, GOAL)
    old = prepared.lock.local
    changes = difference(old, prepared.local) if old is not None else ()
    return Planned(prepared.name, plan, tuple(changes))


def build_pin(
    project: Project,
    name: str | None,
    store: Store,
    reporter: Reporter,
    *,
    locked: bool = False,
    jobs: int | None = None,
) -> Built:
    """Build a pin's image.

    Raises BadInput for a stale lock, JudgedBad("outputs.mismatch" | "outputs.encoder")
    where the outputs are not the lock's, and whatever an action raises. With `locked`
    nothing of the lock is written, and a local difference is an error.
    """
    name = name or project.pins.default
    lock = read_pin_lock(project, name, project.pin(name))
    store.sweep()
    fetcher = LockFetcher(project, lock, store, reporter)
    prepared = prepare(project, name, store, fetcher, reporter)
    current = _check_local(project, prepared, locked, reporter)

    before = make_plan(store, prepared.assembly.graph, GOAL)
    if before.todo:
        ensure_tool(BUBBLEWRAP, project, lock.resolved, store, fetcher, reporter)
    results = build(store, prepared.assembly.graph, GOAL, fetcher, reporter, jobs)
    outputs = _outputs(store, prepared, results)
    lock = prepared.lock
    if current and lock.outputs is not None:
        _check_outputs(project, store, prepared, outputs, results)
    elif locked:
        raise BadInput(
            "lock.no-outputs",
            f"the lock of {name!r} knows no outputs yet",
            where=str(locks_path(project.root, name).relative_to(project.root)),
            fix=f"run `kiln build {name}` without --locked and commit the lock",
        )
    else:
        lock = replace_lock(lock, prepared.local, outputs)
        write_lock(locks_path(project.root, name), lock)
        prints = {
            layer.name: (layer.diff_id, fingerprints(_listing(store, results, layer.name)))
            for layer in outputs.layers
        }
        write_fingerprints(fingerprints_path(project.root, name), prints)
        reporter.note(f"{locks_path(project.root, name).name}: local part and outputs written")
    name_image(store, name, outputs.manifest)
    return Built(name, outputs.manifest, prepared.identity, lock, len(before.todo))


def replace_lock(lock: Lock, local: Local, outputs: Outputs) -> Lock:
    """The lock with new local and output parts."""
    return msgspec.structs.replace(lock, local=local, outputs=outputs)


def _check_local(project: Project, prepared: Prepared, locked: bool, reporter: Reporter) -> bool:
    """Whether the lock's local part is today's; with `locked` a difference is an error."""
    old = prepared.lock.local
    if (
        old is not None
        and msgspec.structs.replace(old, encoder=prepared.local.encoder) == prepared.local
    ):
        return True
    changes = difference(old, prepared.local) if old is not None else []
    why = "\n".join(str(change) for change in changes) or "the lock has no local part yet"
    if locked:
        raise BadInput(
            "lock.local-changed",
            f"the repository is not what the lock of {prepared.name!r} says",
            where=str(locks_path(project.root, prepared.name).relative_to(project.root)),
            why=why,
            fix=f"run `kiln build {prepared.name}` without --locked and commit the lock",
        )
    for line in why.splitlines():
        reporter.note(f"local: {line}")
    return False


def _outputs(store: Store, prepared: Prepared, results: Results) -> Outputs:
    metas = {
        name: store.blobs.read(results[f"layer:{name}"]["meta"].sha256)
        for name in prepared.assembly.layers
    }
    image = results[GOAL]
    return Outputs(read_layers(metas), image["config"], image["manifest"])


def _listing(store: Store, results: Results, layer: str) -> bytes:
    return store.blobs.read(results[f"layer:{layer}"]["files"].sha256)


def _check_outputs(
    project: Project, store: Store, prepared: Prepared, built: Outputs, results: Results
) -> None:
    lock = prepared.lock
    assert lock.outputs is not None
    assert lock.local is not None
    if built == lock.outputs:
        return
    raise compare_outputs(
        lock.outputs,
        built,
        where=str(locks_path(project.root, prepared.name).relative_to(project.root)),
        encoders=(lock.local.encoder, prepared.local.encoder),
        listing=lambda layer: _listing(store, results, layer),
        fingerprints=fingerprints_path(project.root, prepared.name),
    ) or JudgedBad("outputs.mismatch", "the outputs are not the lock's")
