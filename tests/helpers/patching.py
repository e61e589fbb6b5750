"""A tiny source, patches to it, and how tests apply them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kiln.errors import KilnError, Problems
from kiln.pins.model import Pins
from kiln.pins.patch import PatchFile
from kiln.pins.project import Project
from kiln.pins.yaml import Document, Map
from kiln.source.apply import Applied, apply_series, no_modes

SOURCE = b"".join(b"line%d = %d\n" % (n, n) for n in range(1, 21))
CHANGED = SOURCE.replace(b"line10 = 10\n", b"line10 = 'ten'\n")
HEADER = b"--- a/vllm/config/m.py\n+++ b/vllm/config/m.py\n"
GIT = b"diff --git a/vllm/config/m.py b/vllm/config/m.py\n"
HUNK = b"""@@ -8,5 +8,5 @@ def somewhere():
 line8 = 8
 line9 = 9
-line10 = 10
+line10 = 'ten'
 line11 = 11
 line12 = 12
"""
TREE = {"vllm/__init__.py": b"", "vllm/config/m.py": SOURCE}


def patch_files(*patches: bytes | PatchFile) -> list[PatchFile]:
    """p1, p2, ... of these bytes."""
    return [
        patch if isinstance(patch, PatchFile) else PatchFile(f"p{n}", patch, f"p{n}.patch")
        for n, patch in enumerate(patches, 1)
    ]


def apply(
    tree: Mapping[str, bytes],
    *patches: bytes | PatchFile,
    modes: Callable[[str], int | None] = no_modes,
) -> Applied:
    """The patches in a row, on this source."""
    return apply_series(tree.get, tree.keys(), patch_files(*patches), modes)


def errors(
    tree: Mapping[str, bytes],
    *patches: bytes | PatchFile,
    modes: Callable[[str], int | None] = no_modes,
) -> list[KilnError]:
    """What is wrong with them; and the source is as it was."""
    before = dict(tree)
    with pytest.raises(KilnError) as caught:
        apply(tree, *patches, modes=modes)
    assert dict(tree) == before
    error = caught.value
    return list(error.errors) if isinstance(error, Problems) else [error]


def codes(
    tree: Mapping[str, bytes],
    *patches: bytes | PatchFile,
    modes: Callable[[str], int | None] = no_modes,
) -> list[str]:
    """The codes of what is wrong."""
    return [error.code for error in errors(tree, *patches, modes=modes)]


def new_file(path: str, body: bytes = b"x = 1\n", mode: bytes = b"100644") -> bytes:
    """git's diff that adds a file."""
    name, lines = path.encode(), body.splitlines(keepends=True)
    count = b"1" if len(lines) == 1 else b"1,%d" % len(lines)
    text = b"".join(b"+" + line for line in lines)
    text += b"" if body.endswith(b"\n") else b"\n\\ No newline at end of file\n"
    return (
        b"diff --git a/%s b/%s\nnew file mode %s\nindex 0000000..1111111\n" % (name, name, mode)
        + b"--- /dev/null\n+++ b/%s\n@@ -0,0 +%s @@\n" % (name, count)
        + text
    )


def link(path: str, target: bytes) -> bytes:
    """git's diff that adds a link."""
    return new_file(path, target, b"120000")


def deletion(path: str, body: bytes, mode: bytes = b"100644") -> bytes:
    """git's diff that deletes a file."""
    name, lines = path.encode(), body.splitlines(keepends=True)
    count = b"1" if len(lines) == 1 else b"1,%d" % len(lines)
    text = b"".join(b"-" + line for line in lines)
    text += b"" if body.endswith(b"\n") else b"\n\\ No newline at end of file\n"
    return (
        b"diff --git a/%s b/%s\ndeleted file mode %s\nindex 1111111..0000000\n" % (name, name, mode)
        + b"--- a/%s\n+++ /dev/null\n@@ -%s +0,0 @@\n" % (name, count)
        + text
    )


def rename(old: str, new: str, hunks: bytes = b"", likeness: int = 100) -> bytes:
    """git's diff that renames a file."""
    a, b = old.encode(), new.encode()
    head = b"diff --git a/%s b/%s\nsimilarity index %d%%\n" % (a, b, likeness)
    head += b"rename from %s\nrename to %s\n" % (a, b)
    return head + (b"index 1..2 100644\n--- a/%s\n+++ b/%s\n" % (a, b) + hunks if hunks else b"")


def project(root: Path, **patches: str) -> Project:
    """A project whose patches have these further lines in their patch.yaml.

    Ids are the names, "_" standing for "-".
    """
    for name, text in patches.items():
        folder = root / "patches" / name.replace("_", "-")
        folder.mkdir(parents=True)
        (folder / "patch.yaml").write_text(
            "title: t\nwhy: w\norigin: o\n"
            + (f"{text}\n" if text else "")
            + 'versions: [{range: "==1.0", file: 1.patch}]\n'
        )
        (folder / "1.patch").write_bytes(HEADER + HUNK)
    return Project(root, Document("pins.yaml", Pins(default="x", pins={}), Map(1, 1)))
