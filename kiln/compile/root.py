"""Roots: the file systems that foreign code sees, unpacked from trees and wheels.

Packages are unpacked, not installed: no maintainer script runs. A root gets what those
would have left and what the sandbox needs: mount points, and the one user that exists
inside.

Roots are a cache below `store.roots`, one for each list of parts. They are filled under
a temporary name and renamed, so what stands under the final name is complete; they are
only ever bound read-only.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from kiln.canonical import JSON, Digest, key
from kiln.graph.action import Input
from kiln.source.entry import Entry, data_entry, merge
from kiln.source.tree import read_tree, unpack
from kiln.source.wheel import Install, Wheel
from kiln.store import Store

# Raise it whenever the same parts would give another root.
VERSION = 1
UID = GID = 1000
MOUNTS = ("build", "dev", "proc", "tmp")
_FIXED = {
    "etc/passwd": f"build:x:{UID}:{GID}::/tmp/home:/bin/sh\n",
    "etc/group": f"build:x:{GID}:\n",
}


@dataclass(frozen=True)
class TreePart:
    """A tree blob (see kiln.source.tree), unpacked at /."""

    digest: Digest


@dataclass(frozen=True)
class WheelPart:
    """A wheel blob and where its files go. filename: its PEP 427 name."""

    digest: Digest
    filename: str
    install: Install


Part = TreePart | WheelPart


class RootParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an action's inputs "root/0000", "root/0001", ... make a root.

    wheels: the file name of each wheel, in order; they stand behind the trees.
    """

    trees: int
    wheels: tuple[str, ...]
    install: Install


def root_inputs(
    trees: Sequence[Input], wheels: Sequence[tuple[str, Input]], install: Install
) -> tuple[dict[str, Input], dict[str, JSON]]:
    """For a node whose step runs in a root: its inputs, and its parameter "root".

    wheels: file name and input of each.
    """
    parts = [*trees, *(item for _, item in wheels)]
    params = RootParams(len(trees), tuple(name for name, _ in wheels), install)
    return {_name(at): part for at, part in enumerate(parts)}, msgspec.to_builtins(params)


def root_parts(inputs: Mapping[str, Digest], params: object) -> list[Part]:
    """The other way round, inside the step."""
    said = msgspec.convert(params, RootParams)
    parts: list[Part] = [TreePart(inputs[_name(at)]) for at in range(said.trees)]
    for at, filename in enumerate(said.wheels, said.trees):
        parts.append(WheelPart(inputs[_name(at)], filename, said.install))
    return parts


def _name(at: int) -> str:
    return f"root/{at:04d}"


def materialise(store: Store, parts: Sequence[Part]) -> Path:
    """The folder of the root made of `parts`; unpacked if it is not there yet.

    Raises BadInput("source.path-clash") where parts contradict each other, what reading
    a tree or wheel raises, and CannotHere("store.no-space").
    """
    target = store.roots / root_key(parts)
    if target.is_dir():
        return target
    scratch = Path(tempfile.mkdtemp(prefix="root-", dir=store.blobs.tmp))
    try:
        fresh = scratch / "root"
        unpack(root_entries(store, parts), fresh)
        os.sync()  # all of it is on the disk before it has its name
        _rename(fresh, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def root_key(parts: Sequence[Part]) -> str:
    """Hex sha256 that names a root: the version of this code and its parts, in order."""
    return key({"root": VERSION, "parts": [_describe(part) for part in parts]})


def root_entries(store: Store, parts: Sequence[Part]) -> list[Entry]:
    """All entries of the root, sorted, what Kiln adds included."""
    entries = merge([_read(store, part) for part in parts])
    have = {entry.path for entry in entries}
    have |= {path[:at] for path in have for at, letter in enumerate(path) if letter == "/"}
    added = [Entry(name, "dir", 0o755, origin="kiln") for name in MOUNTS]
    added += [data_entry(path, text.encode()) for path, text in _FIXED.items()]
    return merge([entries, [entry for entry in added if entry.path not in have]])


def _read(store: Store, part: Part) -> list[Entry]:
    path = store.blobs.path(part.digest.sha256)
    if isinstance(part, TreePart):
        return read_tree(path)
    return Wheel(path, part.filename).entries(part.install)


def _describe(part: Part) -> dict[str, JSON]:
    if isinstance(part, TreePart):
        return {"tree": part.digest.sha256}
    return {
        "wheel": part.digest.sha256,
        "filename": part.filename,
        "install": asdict(part.install),
    }


def _rename(fresh: Path, target: Path) -> None:
    try:
        fresh.rename(target)
    except OSError as error:
        # Another process was faster; the same parts give the same root.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
