"""The step that patches a wheel: what comes out, and what it checks against the lock."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from kiln.canonical import JSON, Digest
from kiln.errors import KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import PATCH
from kiln.lock.model import LockedPatch
from kiln.pins.patch import PatchFile
from kiln.progress import Silent
from kiln.source.patch import patch_wheel
from kiln.source.tree import read_tree
from kiln.source.wheel import Wheel
from kiln.store import Store
from tests.helpers.small import make_wheel

SITE = "usr/lib/python3/dist-packages"
INSTALL = {"site": SITE, "scripts": "usr/bin", "data": "usr", "interpreter": "/usr/bin/python3"}
FILES = {"vllm/__init__.py": "", "vllm/a.py": "a = 1\n", "vllm/b.txt": "b\n"}
CHANGE = b"--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
AGAIN = b"--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = 2\n+a = 3\n"
ADD = b"--- /dev/null\n+++ b/vllm/d.py\n@@ -0,0 +1 @@\n+d = 1\n"
DELETE = b"--- a/vllm/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"
FILE = "vllm-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, "vllm", "1.0", FILES)


def series(*patches: bytes) -> list[PatchFile]:
    return [PatchFile(f"p{n}", data) for n, data in enumerate(patches)]


def locked(wheel: Path, *patches: bytes) -> tuple[LockedPatch, ...]:
    return patch_wheel(Wheel(wheel, FILE), series(*patches)).patches


def run(
    store: Store, wheel: Path, lock: tuple[LockedPatch, ...], *patches: bytes
) -> Mapping[str, Digest]:
    inputs = {f"patch:p{n}": store.blobs.put(data) for n, data in enumerate(patches)}
    inputs["wheel"] = store.blobs.put_file(wheel)
    plain = [msgspec.to_builtins(patch) for patch in lock]
    params: dict[str, JSON] = {"filename": FILE, "install": INSTALL, "series": plain}
    return PATCH.run(Context(store, inputs, params, Silent(), store.blobs.tmp))


def codes(store: Store, wheel: Path, lock: tuple[LockedPatch, ...], *patches: bytes) -> list[str]:
    with pytest.raises(KilnError) as caught:
        run(store, wheel, lock, *patches)
    error = caught.value
    return [e.code for e in error.errors] if isinstance(error, Problems) else [error.code]


def test_changed_and_new_files_and_record_come_out(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE, ADD, AGAIN)
    out = run(store, wheel, lock, CHANGE, ADD, AGAIN)
    assert out.keys() == {"out"}
    tree = {e.path: e for e in read_tree(store.blobs.path(out["out"].sha256)) if e.kind == "file"}
    record = f"{SITE}/vllm-1.0.dist-info/RECORD"
    assert tree.keys() == {f"{SITE}/vllm/a.py", f"{SITE}/vllm/d.py", record}
    content = {path: entry.open().read() for path, entry in tree.items()}
    assert content[f"{SITE}/vllm/a.py"] == b"a = 3\n"
    assert all(entry.mode == 0o644 for entry in tree.values())

    rows = {row[0]: row[1:] for row in csv.reader(content[record].decode().splitlines())}
    expected = {"vllm/a.py": b"a = 3\n", "vllm/b.txt": b"b\n", "vllm/d.py": b"d = 1\n"}
    for path, data in expected.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows[path] == [f"sha256={sha}", str(len(data))]


def test_the_same_series_gives_the_same_tree(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE)
    assert run(store, wheel, lock, CHANGE) == run(store, wheel, lock, CHANGE)


def test_sources_that_are_not_the_locked_ones(store: Store, wheel: Path, tmp_path: Path) -> None:
    lock = locked(wheel, CHANGE, ADD)
    other = make_wheel(tmp_path, "vllm", "1.0", {**FILES, "vllm/a.py": "a = 1\n# more\n"})
    assert codes(store, other, lock, CHANGE, ADD) == ["patch.pre-image"]
    both = make_wheel(tmp_path, "vllm", "1.0", {"vllm/x.py": "", "vllm/d.py": "d = 0\n"})
    assert codes(store, both, lock, CHANGE, ADD) == ["patch.pre-image", "patch.pre-image"]


def test_a_patch_that_is_not_the_locked_one(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE)
    assert codes(store, wheel, lock, CHANGE.replace(b"= 2", b"= 9")) == ["patch.file-changed"]


def test_results_that_are_not_the_locked_ones(store: Store, wheel: Path) -> None:
    (patch,) = locked(wheel, CHANGE)
    (file,) = patch.files

    def claim(**changes: str) -> tuple[LockedPatch, ...]:
        claimed = msgspec.structs.replace(file, **changes)
        return (msgspec.structs.replace(patch, files=(claimed,)),)

    assert codes(store, wheel, claim(post="0" * 64), CHANGE) == ["patch.post-image"]
    assert codes(store, wheel, claim(post=""), CHANGE) == ["patch.post-image"]
    none = (msgspec.structs.replace(patch, files=()),)
    with pytest.raises(KilnError) as caught:
        run(store, wheel, none, CHANGE)
    assert caught.value.code == "patch.post-image"
    assert "expected no change, got sha256" in caught.value.why


def test_deletion_is_refused(wheel: Path) -> None:
    with pytest.raises(KilnError) as caught:
        locked(wheel, DELETE)
    assert (caught.value.code, caught.value.where) == ("patch.deletes", "p0")


def test_the_key_follows_the_order_of_the_series(wheel: Path) -> None:
    from kiln.graph.action import Node

    keys = set()
    for order in ([CHANGE, ADD], [ADD, CHANGE]):
        plain = [msgspec.to_builtins(patch) for patch in locked(wheel, *order)]
        node = Node("patch", PATCH, {}, {"filename": FILE, "install": INSTALL, "series": plain})
        keys.add(node.key({}))
    assert len(keys) == 2
