"""The tar writer: one fixed form (W4), parents once (W15), and no surprises."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence

import pytest

from kiln.errors import BadInput
from kiln.source.entry import Entry, complete, data_entry, merge
from kiln.source.stream import reader
from kiln.source.tar import EPOCH, TarWriter


def written(entries: Sequence[Entry], mtime: int = EPOCH) -> bytes:
    out = io.BytesIO()
    tar = TarWriter(out, mtime)
    for entry in entries:
        tar.add(entry)
    tar.close()
    assert tar.size == len(out.getvalue())
    return out.getvalue()


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()


def zeros(size: int) -> Entry:
    """A file of zeros that is never in memory."""

    def blocks() -> Iterator[bytes]:
        left = size
        while left:
            yield bytes(min(left, 1 << 20))
            left -= min(left, 1 << 20)

    return Entry("big", "file", 0o644, size, opener=lambda: reader(blocks(), lambda: None))


def test_every_header_field_is_fixed() -> None:
    (member,) = members(written([data_entry("f", b"hello", 0o755)]))
    assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (
        EPOCH, 0, 0, "", "",
    )  # fmt: skip
    assert (member.mode, member.size, member.type, member.pax_headers) == (
        0o755, 5, tarfile.REGTYPE, {},
    )  # fmt: skip


def test_the_bytes_do_not_change_by_accident() -> None:
    entries = merge(
        [
            [
                data_entry("usr/bin/tool", b"#!/bin/sh\n", 0o755),
                data_entry("usr/share/" + "x" * 120, b"long"),
                data_entry("usr/share/é", b"accent"),
                Entry("bin", "symlink", 0o777, target="usr/bin"),
                Entry("tmp", "dir", 0o1777),
            ]
        ]
    )
    assert hashlib.sha256(written(complete(entries))).hexdigest() == (
        "77f12961a662c9e77750318d00ba97465a4bb905b3082edb0912227a81d5cc3d"
    )


def test_missing_parents_come_first_and_once() -> None:
    data = written([data_entry("a/b/c", b""), data_entry("a/b/d", b""), data_entry("a/e", b"")])
    assert [(m.name, m.isdir(), m.mode) for m in members(data)] == [
        ("a", True, 0o755),
        ("a/b", True, 0o755),
        ("a/b/c", False, 0o644),
        ("a/b/d", False, 0o644),
        ("a/e", False, 0o644),
    ]


def test_a_declared_folder_keeps_its_mode() -> None:
    data = written([Entry("tmp", "dir", 0o1777), data_entry("tmp/x", b"")])
    assert [(m.name, m.mode) for m in members(data)] == [("tmp", 0o1777), ("tmp/x", 0o644)]


@pytest.mark.parametrize(
    ("path", "pax"),
    [
        ("n" * 100, False),
        ("n" * 101, True),  # a single name of 101 characters has no ustar form
        ("p" * 60 + "/" + "n" * 60, False),  # prefix and name
        ("p" * 155 + "/" + "n" * 100, False),
        ("p" * 156 + "/" + "n" * 100, True),
        ("é" * 10, True),
        ("d/" * 90 + "é", True),
    ],
)
def test_pax_records_only_where_ustar_cannot(path: str, pax: bool) -> None:
    data = written([data_entry(path, b"x")])
    member = members(data)[-1]
    assert member.name == path
    assert member.pax_headers == ({"path": path} if pax else {})
    assert b"mtime=" not in data
    assert b"atime" not in data


def test_a_folder_of_100_characters_needs_a_record_for_its_slash() -> None:
    (member,) = members(written([Entry("d" * 100, "dir", 0o755)]))
    assert member.name == "d" * 100
    assert member.isdir()


@pytest.mark.parametrize("target", ["t" * 101, "ü", "/abs/" + "x" * 200])
def test_long_and_foreign_link_targets(target: str) -> None:
    (member,) = members(written([Entry("l", "symlink", 0o644, target=target)]))
    assert (member.linkname, member.mode) == (target, 0o777)
    assert member.pax_headers == {"linkpath": target}


def test_a_size_above_8_gib_becomes_a_record() -> None:
    class Started(Exception):
        pass

    class Heads:
        """Keeps the headers and stops at the content."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes, /) -> None:
            if len(data) == 1 << 20:
                raise Started
            self.data += data

    out = Heads()
    with pytest.raises(Started):
        TarWriter(out).add(zeros(1 << 33))
    assert b" size=8589934592\n" in out.data
    out = Heads()
    with pytest.raises(Started):
        TarWriter(out).add(zeros((1 << 33) - 1))
    assert out.data[124:136] == b"77777777777\0"
    assert len(out.data) == 512


@pytest.mark.parametrize("mtime", [-1, 1 << 33 | 1])
def test_times_that_do_not_fit_are_refused(mtime: int) -> None:
    with pytest.raises(ValueError, match="mtime"):
        TarWriter(io.BytesIO(), mtime)


@pytest.mark.parametrize("paths", [["b", "a"], ["a", "a"], ["a/b", "a"], ["a0", "a/b"], ["é", "z"]])
def test_unsorted_or_repeated_paths_are_a_bug(paths: list[str]) -> None:
    with pytest.raises(ValueError, match="not sorted"):
        written([data_entry(path, b"") for path in paths])


@pytest.mark.parametrize("above", [data_entry("a", b""), Entry("a", "symlink", 0o777, target="b")])
def test_nothing_is_written_below_a_file_or_a_link(above: Entry) -> None:
    with pytest.raises(ValueError, match="no folder"):
        written([above, data_entry("a/b/c", b"")])


@pytest.mark.parametrize("declared", [0, 4, 6, 2 << 20])
def test_content_of_another_size_is_refused(declared: int) -> None:
    entry = Entry("f", "file", 0o644, declared, opener=lambda: io.BytesIO(b"hello"), origin="o")
    with pytest.raises(BadInput) as caught:
        written([entry])
    assert caught.value.code == "source.size-mismatch"
    assert caught.value.where == "o"


def test_content_of_many_blocks_arrives_whole() -> None:
    size = (3 << 20) + 17
    data = written([zeros(size)])
    assert members(data)[0].size == size
    assert len(data) % 10240 == 0


def test_merge_refuses_what_differs_and_joins_what_does_not() -> None:
    one, two = data_entry("d/f", b"1", origin="one"), data_entry("d/f", b"2", origin="two")
    assert [e.path for e in merge([[one], [one]])] == ["d/f"]
    with pytest.raises(BadInput) as caught:
        merge([[one], [two]])
    assert caught.value.code == "source.path-clash"
    assert (caught.value.where, "one" in caught.value.why) == ("two", True)
    with pytest.raises(BadInput) as caught:
        merge([[Entry("d", "symlink", 0o777, target="e")], [one]])
    assert caught.value.code == "source.below-no-folder"


def test_undeclared_folders_give_way_to_declared_ones() -> None:
    plain, sticky = Entry("tmp", "dir", 0o755), Entry("tmp", "dir", 0o1777)
    for order in ([plain, sticky], [sticky, plain], [sticky, sticky]):
        assert [e.mode for e in merge([[e] for e in order])] == [0o1777]
    with pytest.raises(BadInput) as caught:
        merge([[sticky], [Entry("tmp", "dir", 0o700)]])
    assert caught.value.code == "source.path-clash"


def test_merge_compares_contents_that_nobody_hashed() -> None:
    def entry(data: bytes) -> Entry:
        return Entry("f", "file", 0o644, len(data), opener=lambda: io.BytesIO(data))

    big = bytes(3 << 20)
    assert len(merge([[entry(big)], [entry(big)]])) == 1
    with pytest.raises(BadInput):
        merge([[entry(big)], [entry(big[:-1] + b"x")]])


def test_complete_declares_the_folders_that_are_missing() -> None:
    done = complete([Entry("a", "dir", 0o1777), data_entry("a-b", b""), data_entry("a/b/c", b"")])
    assert [(e.path, e.kind, e.mode) for e in done] == [
        ("a", "dir", 0o1777),
        ("a-b", "file", 0o644),
        ("a/b", "dir", 0o755),
        ("a/b/c", "file", 0o644),
    ]
