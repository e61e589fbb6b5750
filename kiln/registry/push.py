"""An image of the store to a registry: blobs first, then its manifest, its tag at the end.

What is there is not sent: each blob is asked for, then looked for in other repositories of
the registry, then sent; several at once. The manifest goes under its digest before a tag
names it, so a tag never names what is not whole. Interrupt it at any time: what came
through is there the next time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from kiln.canonical import Digest, is_sha256
from kiln.errors import BadInput, Damaged, KilnError, raise_problems
from kiln.fetch.failures import Stopped
from kiln.image.oci import MANIFEST
from kiln.image.read import Image, read_image
from kiln.image.target import find_target, read_target
from kiln.pins.load import Project
from kiln.progress import Reporter, Task, human
from kiln.registry.http import HttpRegistry
from kiln.registry.layout import LayoutRegistry
from kiln.registry.model import Manifest, Registry, mismatch
from kiln.registry.mounts import Mounts
from kiln.registry.names import Folder, Name, check_path
from kiln.store import Store

JOBS = 4  # blobs at once

Sources = Callable[[Digest], Sequence[str]]


def _nowhere(_: Digest) -> Sequence[str]:
    return ()


@dataclass
class Counts:
    """Blobs, and their bytes."""

    blobs: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        """One more."""
        self.blobs, self.size = self.blobs + 1, self.size + size


@dataclass
class Pushed:
    """What a push did. documents: bytes of the manifest, as often as it was written."""

    digest: str
    name: str
    sent: Counts = field(default_factory=Counts)
    skipped: Counts = field(default_factory=Counts)
    mounted: Counts = field(default_factory=Counts)
    documents: int = 0

    @property
    def bytes_sent(self) -> int:
        """All that went to the registry."""
        return self.sent.size + self.documents

    def text(self) -> str:
        """One line for people."""
        kinds = (("sent", self.sent), ("mounted", self.mounted), ("there before", self.skipped))
        parts = [f"{c.blobs} {kind} ({human(c.size)})" for kind, c in kinds if c.blobs]
        return f"{self.name} is {self.digest}: blobs: {', '.join(parts)}"

    def as_dict(self) -> dict[str, object]:
        """For --json; all sizes in bytes."""
        return {
            "digest": self.digest,
            "name": self.name,
            "bytes_sent": self.bytes_sent,
            "blobs": {
                kind: {"count": counts.blobs, "bytes": counts.size}
                for kind, counts in (
                    ("sent", self.sent),
                    ("skipped", self.skipped),
                    ("mounted", self.mounted),
                )
            },
        }


def open_registry(name: Name) -> Registry:
    """The registry or the layout folder that a name is of."""
    if isinstance(name.place, Folder):
        return LayoutRegistry(name.place.path)
    return HttpRegistry(name.place)


def find_image(project: Callable[[], Project], store: Store, target: str | None) -> Image:
    """The built image of a pin (None: the default) or of a manifest's digest.

    A digest is looked for in the store, so an image whose lock has moved on can be pushed.
    Raises BadInput "target.not-built", "target.not-here" and others.
    """
    sha = (target or "").removeprefix("sha256:")
    if is_sha256(sha):
        try:
            return read_image(store, sha)
        except Damaged as error:
            if error.code != "store.missing-blob" or sha not in error.what:
                raise
    return read_target(find_target(project(), target), store)


def push(
    store: Store,
    image: Image,
    name: Name,
    reporter: Reporter,
    *,
    mount_from: Iterable[str] = (),
    jobs: int = JOBS,
) -> Pushed:
    """Push an image. mount_from: repositories of the same registry that may have its blobs.

    Raises BadInput("registry.bad-name") for a name with a digest, and what `Registry` raises.
    """
    if name.digest:
        raise BadInput(
            "registry.bad-name",
            f"{str(name)!r} says which digest to push to",
            fix="leave out the @digest: the image has its own",
        )
    for repository in (sources := tuple(mount_from)):
        check_path(repository)
    if isinstance(name.place, Folder):
        if sources:
            raise BadInput(
                "registry.bad-name",
                "a layout folder has no other repositories to mount from",
                where=str(name),
                fix="leave out --mount-from",
            )
        mounts = None
    else:
        mounts = Mounts(store, name.place.host, name.place.name, sources)
    with store.building():  # nobody collects what is being sent
        pushed = push_image(
            store,
            image,
            open_registry(name),
            name.tag,
            reporter,
            sources=mounts.sources if mounts else _nowhere,
            jobs=jobs,
        )
    if mounts is not None:
        mounts.remember(_blobs(image))
    return pushed


def push_image(
    store: Store,
    image: Image,
    registry: Registry,
    tag: str,
    reporter: Reporter,
    *,
    sources: Sources = _nowhere,
    jobs: int = JOBS,
) -> Pushed:
    """Push an image to a registry that is open. tag: "" for none. sources: where to mount a
    blob from. Raises every failure of the blobs at once; then there is no manifest."""
    name = f"{registry.place}:{tag}" if tag else registry.place
    pushed = Pushed(str(image), name)
    data = store.blobs.read(image.manifest.sha256)
    manifest = Manifest(data, MANIFEST)
    manifest = Manifest(data, manifest.parts().media_type or MANIFEST)
    known = registry.resolve(str(image))  # also the first request: one token for all that follow
    blobs = _blobs(image)
    with reporter.task(f"push {name}", sum(blob.size for blob in blobs)) as task:
        _Blobs(store, registry, pushed, sources, task).push(blobs, jobs)
    if known != image.manifest:
        registry.write_manifest(manifest)
        pushed.documents += len(data)
    if tag and registry.resolve(tag) != image.manifest:
        registry.write_manifest(manifest, tag)
        pushed.documents += len(data)
    found = registry.read_manifest(tag or str(image)).digest
    if found != image.manifest:
        raise mismatch(name, str(image), str(found))
    return pushed


def _blobs(image: Image) -> list[Digest]:
    """Config and layers, each once; the largest first, so that it does not run alone at the end."""
    blobs = {image.config, *(layer.digest for layer in image.layers)}
    return sorted(blobs, key=lambda blob: (-blob.size, blob.sha256))


@dataclass
class _Blobs:
    """The blobs of one push, by several threads."""

    store: Store
    registry: Registry
    pushed: Pushed
    sources: Sources
    task: Task
    lock: threading.Lock = field(default_factory=threading.Lock)
    failed: threading.Event = field(default_factory=threading.Event)

    def push(self, blobs: Sequence[Digest], jobs: int) -> None:
        """All of them. After a failure no further one is begun; those under way may end."""
        errors: list[KilnError] = []
        stopped: Stopped | None = None
        with ThreadPoolExecutor(jobs, thread_name_prefix="push") as pool:
            try:
                running: set[Future[None]] = {pool.submit(self._one, blob) for blob in blobs}
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        try:
                            future.result()
                        except KilnError as error:
                            errors.append(error)
                        except Stopped as error:
                            stopped = error
            except BaseException:
                self.registry.halt()
                pool.shutdown(cancel_futures=True)
                raise
        if stopped is not None and not errors:
            raise stopped
        # Four blobs that met one wall are one failure to a reader.
        raise_problems(list({(e.code, e.why): e for e in errors}.values()))

    def _one(self, blob: Digest) -> None:
        if self.failed.is_set():
            return
        try:
            self._have(blob)
        except BaseException:
            self.failed.set()
            raise

    def _have(self, blob: Digest) -> None:
        if self.registry.has_blob(blob):
            return self._count(self.pushed.skipped, blob, told=False)
        for repository in self.sources(blob):
            if self.registry.mount(blob, repository):
                return self._count(self.pushed.mounted, blob, told=False)
        self.registry.write_blob(blob, lambda: self.store.blobs.open(blob.sha256), self._advance)
        return self._count(self.pushed.sent, blob, told=True)

    def _count(self, counts: Counts, blob: Digest, *, told: bool) -> None:
        with self.lock:
            counts.add(blob.size)
            if not told:
                self.task.advance(blob.size)

    def _advance(self, amount: int) -> None:
        with self.lock:
            self.task.advance(amount)
