"""Build a pin: lock in, image out, and the lock's parts kept true on the way.

The flow: read the lock; refuse it where it is stale; bring its local part up to date
(the patch series is applied once to know each file's image before and after); build;
compare the outputs with the lock's, or write them where the parts above changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kiln.canonical import Digest, digest, dumps, sha256
from kiln.errors import BadInput
from kiln.image.identity import Identity
from kiln.image.layout import name_image
from kiln.image.prepare import Prepared, prepare
from kiln.lock.compare import compare_outputs, difference
from kiln.lock.file import locks_path, write_lock
from kiln.lock.fingerprints import fingerprints, fingerprints_path, write_fingerprints
from kiln.lock.model import Lock, Outputs
from kiln.pins.load import Project
from kiln.progress import Reporter
from kiln.store import Store

if TYPE_CHECKING:
    from kiln.image.make import Made


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


def build_pin(
    project: Project,
    name: str | None,
    store: Store,
    reporter: Reporter,
    *,
    locked: bool = False,
    new_encoder: bool = False,
    jobs: int | None = None,
) -> Built:
    """Build a pin's image.

    Raises BadInput for a stale lock, JudgedBad("outputs.mismatch" | "outputs.encoder")
    where the outputs are not the lock's, and whatever an action raises. With `locked`
    nothing of the lock is written, and a local difference is an error. With `new_encoder`
    the lock moves to this encoder, if every diffID is the lock's.
    """
    name = name or project.pins.default
    store.sweep()
    prepared = prepare(project, name, store, reporter, fetch=True)
    lock = prepared.lock
    current = _check_local(prepared, locked, reporter)
    if current and lock.outputs is not None and _is_here(store, prepared, lock.outputs):
        name_image(store, name, lock.outputs.manifest)
        return Built(name, lock.outputs.manifest, prepared.identity, lock, 0)

    # Imported here: when nothing has changed, the code that works is not needed.
    from kiln.image.make import make

    made = make(project, prepared, store, reporter, jobs)
    settled = _compared(project, prepared, made, new_encoder and not locked) if current else None
    if settled is None:
        if locked:
            raise BadInput(
                "lock.no-outputs",
                f"the lock of {name!r} knows no outputs yet",
                where=prepared.where,
                fix=f"run `kiln build {name}` without --locked and commit the lock",
            )
        settled = _written(project, prepared, made)
        reporter.note(f"{prepared.where}: local part and outputs written")
    _note_built(store, prepared, made.outputs)
    name_image(store, name, made.outputs.manifest)
    return Built(name, made.outputs.manifest, prepared.identity, settled, made.ran)


def _compared(project: Project, prepared: Prepared, made: Made, new_encoder: bool) -> Lock | None:
    """The lock, if what was made is what it says; None where its outputs are to be written.

    Raises JudgedBad("outputs.mismatch" | "outputs.encoder").
    """
    lock = prepared.lock
    if lock.outputs is None:
        return None
    wrong = compare_outputs(
        lock.outputs,
        made.outputs,
        where=prepared.where,
        encoders=prepared.encoders,
        listing=made.listing,
        fingerprints=fingerprints_path(project.root, prepared.name),
    )
    if wrong is None:
        return lock
    if new_encoder and wrong.code == "outputs.encoder":
        return None
    raise wrong


def _written(project: Project, prepared: Prepared, made: Made) -> Lock:
    """Write the lock with today's local part and what was made, and the list of its files."""
    name = prepared.name
    lock = msgspec.structs.replace(prepared.lock, local=prepared.local, outputs=made.outputs)
    write_lock(locks_path(project.root, name), lock)
    layers = made.outputs.layers
    prints = {x.name: (x.diff_id, fingerprints(made.listing(x.name))) for x in layers}
    write_fingerprints(fingerprints_path(project.root, name), prints)
    return lock


def _check_local(prepared: Prepared, locked: bool, reporter: Reporter) -> bool:
    """Whether the lock's local part is today's; with `locked` a difference is an error.

    Another encoder is not a difference here: it changes no content, and the comparison of
    the outputs tells it apart.
    """
    old, new = prepared.lock.local, prepared.local
    if old is not None and msgspec.structs.replace(old, encoder=new.encoder) == new:
        return True
    changes = difference(old, new) if old is not None else []
    why = "\n".join(str(change) for change in changes) or "the lock has no local part yet"
    if locked:
        raise BadInput(
            "lock.local-changed",
            f"the repository is not what the lock of {prepared.name!r} says",
            where=prepared.where,
            why=why,
            fix=f"run `kiln build {prepared.name}` without --locked and commit the lock",
        )
    for line in why.splitlines():
        reporter.note(f"local: {line}")
    return False


# ---- the whole image as one action ---------------------------------------------------------
#
# kiln.id is the hash of all inputs, so the image as a whole is an action with it as its
# only parameter. Its row in the table says that this store has built exactly that.


def _whole(prepared: Prepared) -> bytes:
    return dumps({"mnemonic": "whole-image", "version": 1, "kiln_id": prepared.identity.id})


def _blobs(outputs: Outputs) -> dict[str, Digest]:
    """The image's blobs, and the outputs themselves: diffIDs are of no blob's name."""
    layers = {f"layer:{layer.name}": layer.digest for layer in outputs.layers}
    own = {"manifest": outputs.manifest, "config": outputs.config}
    return {**own, "outputs": digest(dumps(outputs)), **layers}


def _note_built(store: Store, prepared: Prepared, outputs: Outputs) -> None:
    action = _whole(prepared)
    store.blobs.put(dumps(outputs))
    store.actions.put(sha256(action), f"whole:{prepared.name}", action, _blobs(outputs))


def _is_here(store: Store, prepared: Prepared, outputs: Outputs) -> bool:
    """Whether this store built these outputs from these inputs, and still has them."""
    found = store.actions.get(sha256(_whole(prepared)))
    return found == _blobs(outputs) and all(store.blobs.has(d) for d in found.values())
