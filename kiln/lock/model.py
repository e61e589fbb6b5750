"""The lock: a pin's closure, every input by sha256, in three parts.

`resolved` is written by `kiln lock` alone, with a network. `local` holds the hashes
of what lies in the repository; `kiln build` brings it up to date. `outputs` is what
the build made of both. No hosts, no times: the same inputs give the same lock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kiln.canonical import Digest, key


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything in a lock: frozen, and a field from elsewhere is an error."""


class Wheel(Record, frozen=True, order=True):
    """A wheel or sdist. index: logical name ("default", "pytorch-cpu"), never a host."""

    name: str  # normalised (PEP 503)
    version: str
    file: str
    size: int
    sha256: str
    index: str = "default"


class Deb(Record, frozen=True, order=True):
    """A Debian package. path: in the archive's pool, "pool/main/b/bash/...".

    group: the recipe's group (layer) that first needs it. suite: "bookworm".
    """

    name: str
    version: str
    architecture: str
    path: str
    size: int
    sha256: str
    group: str
    suite: str


class Closure(Record, frozen=True):
    """Everything that one root (image, build root, converter) is made of.

    sources: what is built or converted in it, an sdist or a wheel.
    """

    debs: tuple[Deb, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    sources: tuple[Wheel, ...] = ()


class Suite(Record, frozen=True):
    """A Debian suite as it was when locked. date: of its Release file, which names
    the archive snapshot; sha256: of the signed InRelease file."""

    date: str
    sha256: str


class Base(Record, frozen=True):
    """An OCI base. index_digest may be "" (unknown is said, never guessed)."""

    repository: str
    index_digest: str
    manifest_digest: str


class Resolved(Record, frozen=True):
    """What `kiln lock` found.

    request: the parts of pin, recipe and components that it was resolved from, as JSON
    (see kiln/canonical.py); a difference from today's makes the lock stale. closures:
    "image", "sandbox", "build/<component>", "model/<name>".
    """

    request: dict[str, Any]
    closures: dict[str, Closure] = {}
    suites: dict[str, Suite] = {}
    base: Base | None = None


LINK = "120000"
"""git's mode of a symbolic link, as a lock spells it."""


class PatchedFile(Record, frozen=True, omit_defaults=True):
    """A file that a patch touches. pre and post: sha256 hex, of a link that of its target;
    "" = absent. mode: git's, "100755" or "120000", afterwards; "" = a plain file, or none."""

    path: str
    pre: str
    post: str
    mode: str = ""


class LockedPatch(Record, frozen=True, omit_defaults=True):
    """One patch of the series: the hash of its .patch file and of what it changes.

    counters: the decisions that its code counts, as patch.yaml declares them. left_out: files
    of its diff that are not taken. rules: hash of what in patch.yaml decides whether the patch
    may be applied (`kiln.pins.patch.PatchFile.rules`); "" where nothing does.
    """

    id: str
    sha256: str
    files: tuple[PatchedFile, ...]
    counters: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    rules: str = ""


class Encoder(Record, frozen=True):
    """The layer compressor, to the byte: blobs differ by all three."""

    name: str
    version: str
    block: int  # bytes fed at once


class Local(Record, frozen=True):
    """Hashes of what lies in the repository."""

    recipe: str
    components: dict[str, str]
    patches: tuple[LockedPatch, ...]
    steps: dict[str, int]  # mnemonic -> version of the step's code
    encoder: Encoder


class Layer(Record, frozen=True):
    """One layer: diff_id hashes the tar, digest the compressed blob (both hex)."""

    name: str
    diff_id: str
    digest: Digest
    tar_size: int


class Outputs(Record, frozen=True):
    """What the build made."""

    layers: tuple[Layer, ...]
    config: Digest
    manifest: Digest


class Lock(Record, frozen=True):
    """images/locks/<pin>.lock."""

    pin: str
    resolved: Resolved
    local: Local | None = None
    outputs: Outputs | None = None
    schema: int = 1


def patch_set_id(patches: tuple[LockedPatch, ...]) -> str:
    """Hex sha256 over the series: ids, patch files and post-images, in order."""
    return key(_in_image(patches))


def _in_image(patches: tuple[LockedPatch, ...]) -> list[Any]:
    """What of a series can change an image: not what is left out, nor when it is refused."""
    return [
        msgspec.to_builtins(msgspec.structs.replace(patch, left_out=(), rules=""))
        for patch in patches
    ]


def kiln_id(pin: str, resolved: Resolved, local: Local) -> str:
    """Hex sha256 over the inputs of the image: the identity that it can carry in itself.

    (An image cannot know its own digest: DESIGN.md, promise 3.) Only what can change the
    image's content counts: not the gates' models, not the closure "sandbox", and not the
    encoder, which changes blobs but no diffID.
    """
    asked = resolved.request
    components = asked.get("components", {})
    roots = {made.get("root") for made in components.values()}
    closures = {
        name: msgspec.to_builtins(closure)
        for name, closure in resolved.closures.items()
        if name == "image" or name.startswith("build/")
    }
    return key(
        {
            "pin": pin,
            "vllm": asked.get("pin", {}).get("vllm"),
            "architecture": asked.get("recipe", {}).get("architecture"),
            "components": components,
            "roots": {n: root for n, root in asked.get("roots", {}).items() if n in roots},
            "closures": closures,
            "base": msgspec.to_builtins(resolved.base),
            "recipe": local.recipe,
            "made": {n: h for n, h in local.components.items() if not n.startswith("models/")},
            "patches": _in_image(local.patches),
            "steps": local.steps,
        }
    )
