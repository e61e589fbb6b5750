"""Trees: same files, same digest; and unpacking that never leaves its folder (W15)."""

from __future__ import annotations

import io
import os
import stat
import time
from pathlib import Path

import pytest

from kiln.errors import BadInput, Damaged
from kiln.source.entry import Entry, data_entry
from kiln.source.tar import EPOCH
from kiln.source.tree import read_tree, unpack, write_tree
from kiln.store import Store

FILES = [
    data_entry("usr/bin/tool", b"#!/bin/sh\n", 0o755),
    data_entry("usr/lib/" + "long" * 60 + "/é.txt", b"text"),
    Entry("lib", "symlink", 0o777, target="usr/lib"),
    Entry("tmp", "dir", 0o1777),
    data_entry("empty", b""),
]


def read(entry: Entry) -> bytes:
    with entry.open() as source:
        return source.read()


def test_order_does_not_matter(store: Store) -> None:
    assert write_tree(store.blobs, FILES) == write_tree(store.blobs, FILES[::-1])


def test_folders_spelled_out_or_not_are_the_same(store: Store) -> None:
    few = [data_entry("a/b", b"x"), data_entry("a-b", b"y")]
    assert write_tree(store.blobs, few) == write_tree(store.blobs, [*few, Entry("a", "dir", 0o755)])


def test_a_tree_reads_back_and_writes_again(store: Store) -> None:
    digest = write_tree(store.blobs, FILES)
    entries = read_tree(store.blobs.path(digest.sha256), "here")
    found = {e.path: (e.kind, e.mode, e.target) for e in entries}
    for entry in FILES:
        assert found[entry.path] == (entry.kind, entry.mode, entry.target)
    assert {e.path: read(e) for e in entries if e.kind == "file"} == {
        e.path: read(e) for e in FILES if e.kind == "file"
    }
    assert {e.origin for e in entries} == {"here"}
    assert write_tree(store.blobs, entries) == digest


def test_openers_can_be_used_side_by_side(store: Store) -> None:
    digest = write_tree(store.blobs, [data_entry("a", b"1" * 9), data_entry("b", b"2" * 9)])
    a, b = read_tree(store.blobs.path(digest.sha256))
    with a.open() as one, b.open() as two, a.open() as three:
        assert one.read(4) == b"1111"
        assert two.read() == b"2" * 9
        assert three.readline() == b"1" * 9
        assert (one.read(99), one.read()) == (b"11111", b"")


def test_ten_thousand_entries_are_quick(store: Store) -> None:
    digest = write_tree(store.blobs, [data_entry(f"d{n % 50}/f{n}", b"x") for n in range(10_000)])
    start = time.process_time()
    assert len(read_tree(store.blobs.path(digest.sha256))) == 10_050
    assert time.process_time() - start < 2


@pytest.mark.parametrize("cut", [0, 100, 700, 1500])
def test_what_is_no_tree_is_damage(store: Store, tmp_path: Path, cut: int) -> None:
    digest = write_tree(store.blobs, [data_entry("file", b"x" * 1000)])
    path = tmp_path / "cut"
    path.write_bytes(store.blobs.read(digest.sha256)[:cut])
    with pytest.raises(Damaged) as caught:
        read_tree(path)
    assert caught.value.code == "source.tree"


def test_a_foreign_tar_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(b"PK" + bytes(2000))
    with pytest.raises(Damaged):
        read_tree(path)


def test_a_clash_writes_nothing(store: Store) -> None:
    with pytest.raises(BadInput) as caught:
        write_tree(store.blobs, [data_entry("a", b"1"), data_entry("a", b"2")])
    assert caught.value.code == "source.path-clash"
    assert list(store.blobs) == []


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_unpack_sets_modes_and_times_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        unpack([*FILES, Entry("ro", "dir", 0o555), data_entry("ro/f", b"x", 0o400)], tmp_path / "r")
    finally:
        os.umask(old)
    root = tmp_path / "r"
    modes = {
        path: stat.S_IMODE((root / path).lstat().st_mode)
        for path in ("usr", "usr/bin/tool", "tmp", "empty", "ro", "ro/f")
    }
    assert modes == {
        "usr": 0o755,
        "usr/bin/tool": 0o755,
        "tmp": 0o1777,
        "empty": 0o644,
        "ro": 0o555,
        "ro/f": 0o400,
    }
    for path in [*modes, "lib"]:
        assert (root / path).lstat().st_mtime == EPOCH
    assert (root / "lib").readlink() == Path("usr/lib")
    assert (root / "usr/bin/tool").read_bytes() == b"#!/bin/sh\n"


def test_set_id_bits_are_not_unpacked(tmp_path: Path) -> None:
    unpack([data_entry("su", b"x", 0o4755)], tmp_path / "r")
    assert stat.S_IMODE((tmp_path / "r/su").stat().st_mode) == 0o755


def test_nothing_is_written_through_a_link_of_the_same_set(tmp_path: Path) -> None:
    link = Entry("out", "symlink", 0o777, target=str(tmp_path / "outside"))
    (tmp_path / "outside").mkdir()
    with pytest.raises(BadInput) as caught:
        unpack([link, data_entry("out/evil", b"x")], tmp_path / "r")
    assert caught.value.code == "source.below-no-folder"
    assert list((tmp_path / "outside").iterdir()) == []


def test_nothing_is_written_through_a_link_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "r").mkdir()
    (tmp_path / "r/out").symlink_to(tmp_path / "outside")
    for entries in ([data_entry("out/evil", b"x")], [data_entry("out", b"x")]):
        with pytest.raises(BadInput) as caught:
            unpack(entries, tmp_path / "r")
        assert caught.value.code == "source.unpack-exists"
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "entry",
    [data_entry("x", b"new"), Entry("x", "symlink", 0o777, target="y"), Entry("x", "dir", 0o755)],
)
def test_nothing_is_written_over_a_file(tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(BadInput) as caught:
        unpack([entry], tmp_path)
    assert caught.value.code == "source.unpack-exists"
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_second_set_may_join_the_folders_of_the_first(tmp_path: Path) -> None:
    unpack([data_entry("usr/a", b"1")], tmp_path / "r")
    unpack([data_entry("usr/b", b"2")], tmp_path / "r")
    assert sorted(os.listdir(tmp_path / "r/usr")) == ["a", "b"]


def test_content_of_another_size_is_refused(tmp_path: Path) -> None:
    entry = Entry("f", "file", 0o644, 9, opener=lambda: io.BytesIO(b"short"))
    with pytest.raises(BadInput) as caught:
        unpack([entry], tmp_path / "r")
    assert caught.value.code == "source.size-mismatch"
