"""Which manifests speak of another one: the referrers API, and the tag that stands in for it.

Distribution spec, "Listing Referrers" and "Referrers Tag Schema". A registry without the
API keeps an index under the tag sha256-<hex>, which its writers keep up. That tag has no
compare-and-swap: an entry is looked for after it was written, and written again. Of two
that write at the very same time, the later one may still take the earlier one's entry away.
"""

from __future__ import annotations

from collections.abc import Iterable

from kiln.canonical import Digest, dumps
from kiln.errors import JudgedBad, Unavailable
from kiln.image.oci import INDEX
from kiln.registry.model import Descriptor, Manifest, Registry

_ATTEMPTS = 8


def fallback_tag(digest: str) -> str:
    """The tag under which an index of referrers stands."""
    return digest.replace(":", "-", 1)


def list_referrers(
    registry: Registry, digest: Digest, artifact_type: str, found: Iterable[Descriptor] | None
) -> list[Descriptor]:
    """Referrers of a digest, sorted, each once. found: by the API; None where there is none."""
    if found is None:
        found = _read(registry, fallback_tag(str(digest)))
    # A registry may filter or not; what it lists twice is one.
    known = {d.digest: d for d in found if artifact_type in ("", d.artifact_type)}
    return [known[name] for name in sorted(known)]


def record_referrer(registry: Registry, subject: Descriptor, referrer: Descriptor) -> None:
    """Put a manifest into the fallback index of its subject. Raises as the registry does."""
    tag = fallback_tag(subject.digest)
    for _ in range(_ATTEMPTS):
        known = {d.digest: d for d in _read(registry, tag)}
        if known.get(referrer.digest) == referrer:
            return
        known[referrer.digest] = referrer
        try:
            registry.write_manifest(_index(known[name] for name in sorted(known)), tag)
        except JudgedBad as error:
            if error.code != "registry.tag-moved":  # by another writer, as may be
                raise
    raise Unavailable(
        "registry.referrer-lost",
        "the list of referrers does not keep an entry",
        where=f"{registry.place}:{tag}",
        why=f"it was written {_ATTEMPTS} times, and something else each time overwrote it",
        fix="try again when nothing else writes there",
    )


def _read(registry: Registry, tag: str) -> tuple[Descriptor, ...]:
    if registry.resolve(tag) is None:
        return ()
    return registry.read_manifest(tag).parts(f"{registry.place}:{tag}").manifests


def _index(entries: Iterable[Descriptor]) -> Manifest:
    document = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [entry.as_json() for entry in entries],
    }
    return Manifest(dumps(document), INDEX)
