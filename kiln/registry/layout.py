"""An OCI layout folder as a registry: the same promises, no server.

image-layout.md of the image spec. Tags are the names in index.json
(org.opencontainers.image.ref.name); a manifest without a tag has an entry without a name.
index.json is replaced whole, under a lock, so a reader sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kiln.canonical import Digest, dumps, sha256
from kiln.errors import BadInput, CannotHere, Damaged, JudgedBad, Unavailable
from kiln.fetch.failures import Stopped
from kiln.image.oci import INDEX
from kiln.registry.model import (
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    Progress,
    Source,
    check_manifest,
    mismatch,
)
from kiln.registry.names import check_digest, check_reference, check_tag
from kiln.store.blobs import CHUNK, BlobStore, no_space

_NAME = "org.opencontainers.image.ref.name"
_VERSION = dumps({"imageLayoutVersion": "1.0.0"})


_Raw = Sequence[Mapping[str, Any]]


class _Index(msgspec.Struct):
    manifests: tuple[Descriptor, ...] = ()


class LayoutRegistry:
    """One folder (kiln.registry.model.Registry). It is made when something is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = BlobStore(folder)
        self._stop = threading.Event()

    @property
    def place(self) -> str:
        """See `Registry`."""
        return f"oci:{self.folder}"

    def halt(self) -> None:
        """See `Registry`."""
        self._stop.set()

    # ---- blobs -------------------------------------------------------------------------

    def has_blob(self, digest: Digest) -> bool:
        """See `Registry`. Raises JudgedBad("registry.wrong-size")."""
        try:
            size = (self._blobs.dir / digest.sha256).stat().st_size
        except FileNotFoundError:
            return False
        if size != digest.size:
            raise JudgedBad(
                "registry.wrong-size",
                "the folder's blob has another size than the manifest says",
                where=str(self._blobs.dir / digest.sha256),
                why=f"expected {digest.size} bytes, found {size}",
                fix="remove the file, and push again",
            )
        return True

    def read_blob(self, digest: Digest) -> Iterator[bytes]:
        """See `Registry`."""
        if not self.has_blob(digest):
            raise self._missing(str(digest))
        hashing, path = hashlib.sha256(), self._blobs.dir / digest.sha256
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                self._go_on()
                hashing.update(piece)
                yield piece
        if hashing.hexdigest() != digest.sha256:
            raise mismatch(str(path), str(digest), f"sha256:{hashing.hexdigest()}")

    def write_blob(self, digest: Digest, source: Source, progress: Progress) -> None:
        """See `Registry`. Raises Damaged("store.corrupt-blob"), CannotHere("store.no-space")."""
        self._make()
        try:
            with source() as file, self._blobs.writer(digest) as out:
                while piece := file.read(CHUNK):
                    self._go_on()
                    out.write(piece)
                    progress(len(piece))
        except Damaged as error:
            if error.code != "store.unexpected-content":
                raise
            raise Damaged(
                "store.corrupt-blob",
                "a blob's bytes are not what its name says",
                where=str(digest),
                why=error.why,
                fix="run `kiln fsck`; it sets damaged blobs aside, "
                "and the next build fetches or makes them again",
            ) from error

    def mount(self, digest: Digest, repository: str) -> bool:
        """See `Registry`. A folder has no other repositories."""
        del digest, repository
        return False

    # ---- manifests ---------------------------------------------------------------------

    def resolve(self, reference: str) -> Digest | None:
        """See `Registry`."""
        found = self._find(reference)
        return Digest(found.digest.removeprefix("sha256:"), found.size) if found else None

    def read_manifest(self, reference: str) -> Manifest:
        """See `Registry`."""
        found = self._find(reference)
        if found is None:
            raise self._missing(reference)
        path = self._blobs.dir / check_digest(found.digest)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST + 1)
        except FileNotFoundError:
            raise self._missing(found.digest) from None
        return check_manifest(Manifest(data, found.media_type), found.digest, str(path))

    def write_manifest(self, manifest: Manifest, tag: str = "") -> None:
        """See `Registry`. Raises Unavailable("registry.blob-unknown")."""
        if tag:
            check_tag(tag)
        own = str(manifest.digest)
        self._make()
        parts = check_manifest(manifest, own, self.place).parts()
        for part in (parts.config, *parts.layers, *parts.manifests):
            if part and not self.has_blob(Digest(check_digest(part.digest), part.size)):
                raise Unavailable(
                    "registry.blob-unknown",
                    "the folder lacks a blob of the manifest",
                    where=self.place,
                    why=f"{own} names {part.digest}",
                    fix="push again: what is missing is sent",
                )
        with self._blobs.writer(manifest.digest) as out:
            out.write(manifest.data)
        plain = Descriptor(manifest.media_type, own, manifest.digest.size).as_json()
        with self._edit() as entries:
            # Its other tags stay; an entry without a name is there until it has one.
            kept = [
                e
                for e in entries
                if not (tag and _tag(e) == tag) and (_tag(e) or e["digest"] != own)
            ]
            if tag:
                kept.append({**plain, "annotations": {_NAME: tag}})
            elif not any(e["digest"] == own for e in kept):
                kept.append(plain)
            entries[:] = kept + _orphans(entries, kept)
        self.read_manifest(tag or own)

    def tags(self) -> list[str]:
        """See `Registry`."""
        if not (self.folder / "index.json").exists():
            raise self._missing("index.json")
        names = {entry.annotations.get(_NAME, "") for entry in self._entries()}
        return sorted(names - {""})

    def delete(self, reference: str) -> None:
        """See `Registry`. Blobs stay; collecting them is not done here."""
        if self._find(reference) is None:
            raise self._missing(reference)
        with self._edit() as entries:
            if ":" in reference:
                entries[:] = [e for e in entries if e["digest"] != reference]
            else:
                kept = [e for e in entries if _tag(e) != reference]
                entries[:] = kept + _orphans(entries, kept)

    def referrers(self, digest: Digest, artifact_type: str = "") -> list[Descriptor]:
        """See `Registry`. Every manifest of the index is looked into."""
        found: dict[str, Descriptor] = {}
        for entry in self._entries():
            manifest = self.read_manifest(entry.digest)
            subject = manifest.parts().subject
            if subject is not None and subject.digest == str(digest):
                found[entry.digest] = manifest.descriptor()
        return [d for _, d in sorted(found.items()) if artifact_type in ("", d.artifact_type)]

    # ---- the index ---------------------------------------------------------------------

    def _find(self, reference: str) -> Descriptor | None:
        check_reference(reference)
        for entry in self._entries():
            if reference in (entry.digest, entry.annotations.get(_NAME)):
                return entry
        return None

    def _entries(self) -> list[Descriptor]:
        return list(self._index()[1].manifests)

    def _index(self) -> tuple[dict[str, Any], _Index]:
        """index.json as it is, and as it is understood."""
        path = self.folder / "index.json"
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST + 1)
        except FileNotFoundError:
            return {"schemaVersion": 2, "mediaType": INDEX}, _Index()
        try:
            known = msgspec.json.decode(data, type=_Index)
            return msgspec.json.decode(data, type=dict[str, Any]), known
        except msgspec.DecodeError as error:
            raise BadInput(
                "registry.bad-layout",
                "the folder's index.json is not what the image spec says",
                where=str(path),
                why=str(error),
                fix="name another folder, or take this one away",
            ) from error

    @contextlib.contextmanager
    def _edit(self) -> Iterator[list[dict[str, Any]]]:
        """Change the entries while nobody else does; written when the block ends well.

        What other tools have put there (platforms, annotations) stays.
        """
        with (self.folder / "index.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = self._index()[0]
            entries = list(document.get("manifests", ()))
            yield entries
            entries.sort(key=lambda e: (_tag(e), e["digest"]))
            _replace(self.folder / "index.json", dumps({**document, "manifests": entries}))

    def _make(self) -> None:
        """Have the folder be a layout. One that holds something else is left alone."""
        marker = self.folder / "oci-layout"
        if not marker.exists() and self.folder.is_dir() and any(self.folder.iterdir()):
            # Of a layout that another writer is just making, every file may be there.
            ours = ("blobs", "tmp", "index.", "oci-layout")
            others = [p.name for p in self.folder.iterdir() if not p.name.startswith(ours)]
            if others:
                raise BadInput(
                    "registry.bad-layout",
                    "the folder holds something else than an OCI layout",
                    where=str(self.folder),
                    why=f"it has {min(others)}, and no oci-layout",
                    fix="name an empty folder, or one that does not exist yet",
                )
        try:
            self._blobs.dir.mkdir(parents=True, exist_ok=True)
            self._blobs.tmp.mkdir(exist_ok=True)
            if not marker.exists():
                _replace(marker, _VERSION)
        except OSError as error:
            raise (no_space(error, self.folder) or _cannot_make(self.folder, error)) from error

    def _missing(self, what: str) -> Unavailable:
        return Unavailable(
            "registry.not-found",
            "the folder does not have it",
            where=self.place,
            why=f"{what} is not there",
            fix="check the folder's name and the tag",
        )

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped


def _tag(entry: Mapping[str, Any]) -> str:
    tag: str = (entry.get("annotations") or {}).get(_NAME, "")
    return tag


def _orphans(before: _Raw, after: _Raw) -> list[dict[str, Any]]:
    """Entries without a name for manifests whose last tag went elsewhere: they stay."""
    named = {e["digest"] for e in after}
    left = {e["digest"]: e for e in before if e["digest"] not in named}
    return [{**e, "annotations": _unnamed(e)} for e in left.values()]


def _unnamed(entry: Mapping[str, Any]) -> dict[str, str]:
    return {k: v for k, v in (entry.get("annotations") or {}).items() if k != _NAME}


def _cannot_make(folder: Path, error: OSError) -> CannotHere:
    return CannotHere(
        "registry.cannot-create",
        "the layout folder cannot be made",
        where=str(folder),
        why=error.strerror or str(error),
        fix="name a folder that you may write",
    )


def _replace(path: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(prefix=f"{path.name}-{sha256(data)[:8]}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise (no_space(error, path) or error) from error
