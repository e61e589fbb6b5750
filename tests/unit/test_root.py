"""Roots: what is in them, and that they are there whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.canonical import Digest
from kiln.compile import root as module
from kiln.compile.root import (
    Part,
    TreePart,
    WheelPart,
    materialise,
    root_inputs,
    root_key,
    root_parts,
)
from kiln.errors import BadInput
from kiln.source.entry import Entry, data_entry
from kiln.source.tree import write_tree
from kiln.store import Store
from tests.helpers.wheels import INSTALL, Made


def tree(store: Store, *entries: Entry) -> TreePart:
    return TreePart(write_tree(store.blobs, entries))


def wheel(store: Store, folder: Path, made: Made) -> WheelPart:
    path = made.write(folder)
    return WheelPart(store.blobs.put_file(path), path.name, INSTALL)


@pytest.fixture
def parts(store: Store, tmp_path: Path) -> list[Part]:
    link = Entry("bin", "symlink", 0o777, target="usr/bin")
    return [
        tree(store, data_entry("usr/bin/sh", b"shell", 0o755), link),
        wheel(store, tmp_path, Made()),
    ]


def test_a_root_holds_its_parts_mount_points_and_one_user(store: Store, parts: list[Part]) -> None:
    path = materialise(store, parts)
    assert (path / "bin/sh").read_bytes() == b"shell"
    assert (path / "usr/bin/sh").stat().st_mode & 0o777 == 0o755
    assert (path / INSTALL.site / "demo/__init__.py").read_bytes() == b"x = 1\n"
    for name in ("proc", "dev", "tmp", "build"):
        assert stat.S_ISDIR((path / name).lstat().st_mode)
    assert (path / "etc/passwd").read_text() == "build:x:1000:1000::/tmp/home:/bin/sh\n"


def test_what_the_parts_have_is_not_replaced(store: Store) -> None:
    mine = data_entry("etc/passwd", b"root:x:0:0::/:/bin/sh\n")
    sticky = Entry("tmp", "dir", 0o1777)
    path = materialise(store, [tree(store, mine, sticky)])
    assert (path / "etc/passwd").read_bytes() == b"root:x:0:0::/:/bin/sh\n"
    assert (path / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_it_is_unpacked_once(store: Store, parts: list[Part]) -> None:
    path = materialise(store, parts)
    inode = path.stat().st_ino
    for part in parts:
        store.blobs.remove(part.digest.sha256)
    assert materialise(store, parts).stat().st_ino == inode


def test_the_name_depends_on_every_part_and_its_place(store: Store, parts: list[Part]) -> None:
    other = WheelPart(parts[1].digest, "demo-2.0-py3-none-any.whl", INSTALL)
    keys = [root_key(p) for p in (parts, parts[:1], parts[1:], parts[::-1], [parts[0], other])]
    assert len(set(keys)) == len(keys)
    assert keys[0] == root_key(list(parts))


def test_parts_that_contradict_each_other_are_refused(store: Store) -> None:
    with pytest.raises(BadInput) as error:
        materialise(store, [tree(store, data_entry("a", b"1")), tree(store, data_entry("a", b"2"))])
    assert error.value.code == "source.path-clash"
    assert list(store.roots.iterdir()) == []
    assert list(store.blobs.tmp.iterdir()) == []


def test_an_interrupted_unpacking_leaves_nothing(
    store: Store, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "sync", interrupted)  # all is written by then, nothing named
    with pytest.raises(KeyboardInterrupt):
        materialise(store, parts)
    assert list(store.roots.iterdir()) == []
    assert list(store.blobs.tmp.iterdir()) == []


def test_whoever_is_second_takes_the_firsts_root(
    store: Store, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = module._rename
    inodes = []

    def slow(fresh: Path, target: Path) -> None:
        monkeypatch.setattr(module, "_rename", rename)
        inodes.append(materialise(store, parts).stat().st_ino)  # the other process
        rename(fresh, target)

    monkeypatch.setattr(module, "_rename", slow)
    assert materialise(store, parts).stat().st_ino == inodes[0]
    assert list(store.blobs.tmp.iterdir()) == []


def test_two_processes_at_once(store: Store) -> None:
    part = tree(store, *(data_entry(f"usr/{n}", b"%d" % n) for n in range(300)))
    code = (
        "import sys; from pathlib import Path; from kiln.store import Store\n"
        "from kiln.compile.root import TreePart, materialise; from kiln.canonical import Digest\n"
        "path = materialise(Store(Path(sys.argv[1])), [TreePart(Digest(sys.argv[2], 0))])\n"
        "assert len(list((path / 'usr').iterdir())) == 300; print(path.stat().st_ino)\n"
    )
    argv = [sys.executable, "-c", code, str(store.root), part.digest.sha256]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(3)]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1


def test_inputs_of_a_node_become_the_same_parts_again(store: Store, parts: list[Part]) -> None:
    first, second = parts
    assert isinstance(second, WheelPart)
    inputs, params = root_inputs([first.digest], [(second.filename, second.digest)], INSTALL)
    assert list(inputs) == ["root/0000", "root/0001"]
    digests = {name: item for name, item in inputs.items() if isinstance(item, Digest)}
    assert root_parts(digests, params) == parts
