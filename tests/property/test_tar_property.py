"""The tar writer against readers that others wrote: Python's tarfile, and GNU tar."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.errors import BadInput
from kiln.source.entry import Entry, complete, data_entry, merge
from kiln.source.tar import EPOCH, TarWriter
from kiln.source.tree import read_tree, write_tree
from kiln.store import Store

NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12),
    st.text("ab", min_size=90, max_size=110),
).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
MODES = st.sampled_from([0o644, 0o755, 0o1777, 0o400, 0o4755])


@st.composite
def entry(draw: st.DrawFn) -> Entry:
    path = draw(PATHS)
    kind = draw(st.sampled_from(["file", "dir", "symlink"]))
    if kind == "file":
        size = draw(st.sampled_from([0, 1, 511, 512, 513, 70_000]))
        return data_entry(path, b"x" * size, draw(MODES))
    if kind == "dir":
        return Entry(path, "dir", draw(MODES))
    return Entry(path, "symlink", 0o777, target=draw(PATHS))


def sound(entries: Sequence[Entry]) -> list[Entry]:
    """As many of the entries as fit together."""
    kept: list[Entry] = []
    for one in entries:
        try:
            kept = merge([kept, [one]])
        except BadInput:
            continue
    return complete(kept)


def written(entries: Sequence[Entry]) -> bytes:
    out = io.BytesIO()
    tar = TarWriter(out)
    for one in entries:
        tar.add(one)
    tar.close()
    return out.getvalue()


@settings(max_examples=100, deadline=None)
@given(st.lists(entry(), max_size=12))
def test_tarfile_reads_back_what_was_written(entries: list[Entry]) -> None:
    wanted = sound(entries)
    with tarfile.open(fileobj=io.BytesIO(written(wanted))) as tar:
        found = tar.getmembers()
        kinds = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}
        assert [(m.name, m.type, m.mode, m.linkname, m.size) for m in found] == [
            (e.path, kinds[e.kind], e.mode, e.target, e.size) for e in wanted
        ]
        assert all(
            (m.uid, m.gid, m.uname, m.gname, m.mtime) == (0, 0, "", "", EPOCH) for m in found
        )
        assert all(m.pax_headers.keys() <= {"path", "linkpath"} for m in found)
        for member, one in zip(found, wanted, strict=True):
            content = tar.extractfile(member) if one.kind == "file" else None
            if content is not None:
                assert content.read() == b"x" * one.size


@settings(max_examples=50, deadline=None)
@given(st.lists(entry(), max_size=10), st.randoms())
def test_trees_do_not_depend_on_order_and_read_back(
    entries: list[Entry],
    random: Random,
) -> None:
    wanted = sound(entries)
    shuffled = list(wanted)
    random.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        digest = write_tree(store.blobs, wanted)
        assert write_tree(store.blobs, shuffled) == digest
        back = read_tree(store.blobs.path(digest.sha256))
        assert [(e.path, e.kind, e.mode, e.target, e.size) for e in back] == [
            (e.path, e.kind, e.mode, e.target, e.size) for e in wanted
        ]
        assert write_tree(store.blobs, back) == digest


def test_gnu_tar_reads_it_too(tmp_path: Path) -> None:
    entries = complete(
        merge(
            [
                [
                    data_entry("usr/bin/tool", b"#!/bin/sh\n", 0o755),
                    data_entry("p" * 60 + "/" + "n" * 60, b"x"),
                    data_entry("n" * 101, b"x"),
                    data_entry("é/" + "d" * 150 + "/ü", b"x"),
                    Entry("bin", "symlink", 0o777, target="usr/bin"),
                    Entry("tmp", "dir", 0o1777),
                ]
            ]
        )
    )
    path = tmp_path / "x.tar"
    path.write_bytes(written(entries))
    environment = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
    command = ["tar", "--numeric-owner", "--quoting-style=literal", "-tvf", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    lines = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    assert {(owner, day, time) for _, owner, _, day, time, _ in lines} == {
        ("0/0", "1980-01-01", "00:00")
    }
    names = [name for *_, name in lines]
    assert names == [
        e.path + {"dir": "/", "symlink": f" -> {e.target}", "file": ""}[e.kind] for e in entries
    ]
    assert [mode for mode, *_ in lines if mode[0] == "d"][-2:] == ["drwxr-xr-x"] * 2
    assert "drwxrwxrwt" in {mode for mode, *_ in lines}
