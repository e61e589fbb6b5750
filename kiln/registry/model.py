"""What a registry is to Kiln: one Protocol, with documents that are bytes and stay bytes.

A manifest's identity is the sha256 of the bytes that the registry has. They are never
parsed and written again: other blanks or another order of keys are another digest (R2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import msgspec

from kiln.canonical import JSON, Digest, digest, is_sha256
from kiln.errors import JudgedBad
from kiln.image.oci import INDEX, MANIFEST

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS = (MANIFEST, DOCKER_MANIFEST, INDEX, DOCKER_INDEX)
MAX_MANIFEST = 4 << 20  # bytes; the distribution spec's advice, and what registries take

Source = Callable[[], BinaryIO]  # opens the bytes anew, to be read from any place
Progress = Callable[[int], object]  # bytes gone over; negative where they go again


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A descriptor of the image spec, as far as Kiln uses it."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = {}

    def as_json(self) -> dict[str, JSON]:
        """For a document that Kiln writes."""
        plain: dict[str, JSON] = msgspec.to_builtins(self)
        return plain


class Parts(msgspec.Struct, frozen=True, rename="camel"):
    """What a manifest or an index says, read without belief. None where it says nothing."""

    schema_version: int
    media_type: str | None = None
    artifact_type: str | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index: the very bytes, and the media type they are kept under."""

    data: bytes = field(repr=False)
    media_type: str

    @property
    def digest(self) -> Digest:
        """sha256 and size of the bytes."""
        return digest(self.data)

    def parts(self, where: str = "") -> Parts:
        """What it says. Raises JudgedBad("registry.bad-manifest")."""
        try:
            return msgspec.json.decode(self.data, type=Parts)
        except msgspec.DecodeError as error:
            raise bad_manifest(where or str(self.digest), str(error)) from error

    def descriptor(self) -> Descriptor:
        """A descriptor of it, as an index or a list of referrers has it."""
        parts = self.parts()
        kind = parts.artifact_type or (parts.config.media_type if parts.config else "")
        own = self.digest
        return Descriptor(self.media_type, str(own), own.size, kind, parts.annotations or {})


class Registry(Protocol):
    """One repository: its blobs, manifests and tags.

    A reference is a tag or "sha256:<hex>". All that is read is checked against its digest
    and size, all that is written is looked at again. Raised: BadInput for names, JudgedBad
    where bytes are not what they must be, Unavailable where the registry does not give or
    take something, Stopped after `halt`.
    """

    @property
    def place(self) -> str:
        """The repository's name, for people."""

    def has_blob(self, digest: Digest) -> bool:
        """Whether the blob is there, with this size."""

    def read_blob(self, digest: Digest) -> Iterator[bytes]:
        """The blob in pieces. What was yielded may be wrong until the last piece is out: then
        the whole was checked. Raises Unavailable("registry.not-found")."""

    def write_blob(self, digest: Digest, source: Source, progress: Progress) -> None:
        """Send the blob, whether it is there or not."""

    def mount(self, digest: Digest, repository: str) -> bool:
        """Have the blob from another repository of this registry, without sending it.

        False where that is not to be: then it has to be sent.
        """

    def resolve(self, reference: str) -> Digest | None:
        """Digest and size of the manifest behind a reference; None where there is none."""

    def read_manifest(self, reference: str) -> Manifest:
        """The manifest or index. Raises Unavailable("registry.not-found")."""

    def write_manifest(self, manifest: Manifest, tag: str = "") -> None:
        """Write it, under its digest or a tag; its blobs have to be there before it."""

    def tags(self) -> list[str]:
        """All tags, sorted. Raises Unavailable("registry.not-found") without a repository."""

    def delete(self, reference: str) -> None:
        """Take a tag away, or a manifest with whatever tags name it."""

    def referrers(self, digest: Digest, artifact_type: str = "") -> list[Descriptor]:
        """Manifests whose subject is this one, sorted by digest."""

    def halt(self) -> None:
        """End all that is under way soon; may be called by any thread."""


def check_manifest(manifest: Manifest, reference: str, where: str) -> Manifest:
    """The manifest itself if its bytes are what reference, type and content say.

    Raises JudgedBad "registry.digest-mismatch", "registry.media-type",
    "registry.bad-manifest" or "registry.too-large".
    """
    if len(manifest.data) > MAX_MANIFEST:
        raise JudgedBad(
            "registry.too-large",
            "the manifest is larger than any registry takes",
            where=where,
            why=f"it has more than {MAX_MANIFEST} bytes",
        )
    if reference.startswith("sha256:") and reference != str(manifest.digest):
        raise mismatch(where, reference, str(manifest.digest))
    parts = manifest.parts(where)
    if manifest.media_type not in MANIFESTS:
        raise JudgedBad(
            "registry.media-type",
            "this is no manifest of an image, and no index",
            where=where,
            why=f"its media type is {manifest.media_type[:100]!r}; known: {', '.join(MANIFESTS)}",
        )
    if parts.media_type not in (None, manifest.media_type):
        raise JudgedBad(
            "registry.media-type",
            "the manifest says that it is something else than the registry says",
            where=where,
            why=f"mediaType {parts.media_type!r}, Content-Type {manifest.media_type!r}",
        )
    if parts.schema_version != 2:
        raise bad_manifest(where, f"schemaVersion is {parts.schema_version}, not 2")
    for part in (parts.config, *parts.layers, *parts.manifests, parts.subject):
        if part is not None and not is_sha256(part.digest.removeprefix("sha256:")):
            raise bad_manifest(where, f"not a sha256 digest: {part.digest[:100]!r}")
    return manifest


def bad_manifest(where: str, why: str) -> JudgedBad:
    """The error for a document that is not what the image spec says."""
    return JudgedBad(
        "registry.bad-manifest",
        "the manifest is not what the image spec says",
        where=where,
        why=why[:300],
    )


def mismatch(where: str, wanted: str, found: str) -> JudgedBad:
    """The error for bytes that are not what their digest says."""
    return JudgedBad(
        "registry.digest-mismatch",
        "the registry has other bytes than the digest says",
        where=where,
        why=f"expected {wanted}, found {found}",
        fix="do not use what this registry serves before it is known why",
    )
