"""Archives as hostile input: W7 duplicates, W9 links, W15 names, bombs and damage."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.source import zip as zips
from kiln.source.zip import Archive


def codes(error: KilnError) -> set[str]:
    return {e.code for e in error.errors} if isinstance(error, Problems) else {error.code}


def refused(path: Path) -> set[str]:
    with pytest.raises((BadInput, Problems)) as caught:
        Archive(path, "w.whl")
    return codes(caught.value)


def pack(path: Path, *members: tuple[str, bytes], mode: int = 0o100644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.whl"


def test_members_and_contents(path: Path) -> None:
    big = bytes(range(256)) * 20_000
    archive = Archive(pack(path, ("a/b.py", b"x = 1\n"), ("big", big), ("empty", b"")), "w.whl")
    assert list(archive.members) == ["a/b.py", "big", "empty"]
    assert [archive.read(name) for name in archive.members] == [b"x = 1\n", big, b""]
    with archive.open(archive.members["big"]) as one, archive.open(archive.members["big"]) as two:
        assert one.read(1000) == big[:1000]
        assert two.read(5) == big[:5]
        assert one.read() == big[1000:]


def test_stored_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("s", b"stored" * 300_000)
    assert Archive(path, "w").read("s") == b"stored" * 300_000


def test_folders_are_no_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("d")
        archive.writestr("d/f", b"x")
    assert list(Archive(path, "w").members) == ["d/f"]


def test_duplicates_are_refused(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        pack(path, ("p/m.py", b"1"), ("p/m.py", b"2"))
    assert refused(path) == {"zip.duplicate"}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_links_and_devices_are_refused(path: Path, kind: int) -> None:
    pack(path, ("p/link", b"/etc/passwd"), mode=kind | 0o777)
    assert refused(path) == {"zip.odd-type"}


@pytest.mark.parametrize("name", ["./a", "/a", "../../a", "a//b", "a/../b", "a/.", "a\\b", "C:\\x"])
def test_odd_names_are_refused(path: Path, name: str) -> None:
    assert refused(pack(path, (name, b"x"))) == {"source.odd-path"}


def test_odd_folder_names_are_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../up/", b"")
    assert refused(path) == {"source.odd-path"}


def test_a_name_with_a_nul_is_refused(path: Path) -> None:
    pack(path, ("aXb", b"x"))
    path.write_bytes(path.read_bytes().replace(b"aXb", b"a\0b"))
    assert refused(path) == {"source.odd-path"}


def test_a_file_that_is_a_folder_too_is_refused(path: Path) -> None:
    assert refused(pack(path, ("a", b"1"), ("a/b", b"2"))) == {"zip.file-and-folder"}


def test_encrypted_members_are_refused(path: Path) -> None:
    pack(path, ("secret", b"x"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert refused(path) == {"zip.encrypted"}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unknown_compression_is_refused(path: Path, method: int) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a", b"x")
    assert refused(path) == {"zip.compression"}


def test_a_local_header_of_another_name_is_refused(path: Path) -> None:
    pack(path, ("good.py", b"x"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"good.py", b"evil.py", 1))
    assert refused(path) == {"zip.mismatch"}


def test_members_that_share_bytes_are_refused(path: Path) -> None:
    pack(path, ("a", b"x" * 100), ("a2", b"x" * 100))
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\1\2")
    # The second one's header lies in the first one's bytes.
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("b", bytes(data[: data.index(b"PK\1\2")]))
    whole = bytearray(inner.getvalue())
    start = whole.index(b"PK\3\4", 1)
    directory = whole.index(b"PK\1\2")
    entry = bytearray(data[data.index(b"PK\1\2") : second])
    struct.pack_into("<L", entry, 42, start)
    joined = whole[:directory] + whole[directory : whole.rindex(b"PK\5\6")] + entry
    size = len(joined) - directory
    joined += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, size, directory, 0)
    path.write_bytes(joined)
    assert refused(path) == {"zip.overlap"}


def test_bombs_are_refused_by_what_they_declare(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(path, ("bomb", bytes(80 << 20)))
    assert refused(path) == {"zip.bomb"}
    monkeypatch.setattr(zips, "MAX_MEMBERS", 2)
    pack(path, ("a", b""), ("b", b""), ("c", b""))
    assert refused(path) == {"zip.bomb"}
    monkeypatch.setattr(zips, "MAX_TOTAL", 10)
    pack(path, ("a", b"x" * 11))
    assert refused(path) == {"zip.bomb"}


def lie(path: Path, field: int, value: int) -> Archive:
    """The archive with a 32-bit field of its only directory entry changed."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, data.index(b"PK\1\2") + field, value)
    path.write_bytes(data)
    return Archive(path, "w.whl")


@pytest.mark.parametrize("declared", [10, 999, 1001, 5000])
def test_another_size_than_declared_is_corrupt(path: Path, declared: int) -> None:
    archive = lie(pack(path, ("a", b"x" * 1000)), 24, declared)
    with pytest.raises(BadInput) as caught:
        archive.read("a")
    assert caught.value.code == "zip.corrupt"
    assert "a cannot" in caught.value.what


def test_a_wrong_crc_is_corrupt_and_gives_no_last_block(path: Path) -> None:
    archive = lie(pack(path, ("a", b"x" * 1000)), 16, 12345)
    with archive.open(archive.members["a"]) as source, pytest.raises(BadInput) as caught:
        source.read(10)
    assert caught.value.code == "zip.corrupt"


def noise() -> bytes:
    """What does not compress away: 2 MB of numbers."""
    return b"".join(b"%d\n" % (n * n * 7919) for n in range(150_000))


def test_a_truncated_stream_is_corrupt(path: Path) -> None:
    pack(path, ("a", noise()))
    archive = lie(path, 20, 1000)  # packed size
    with pytest.raises(BadInput) as caught:
        archive.read("a")
    assert (caught.value.code, "too early" in caught.value.why) == ("zip.corrupt", True)


def test_a_flipped_bit_is_corrupt_wherever_it_is(path: Path) -> None:
    pack(path, ("a", noise()[:20_000]))
    data = path.read_bytes()
    member = Archive(path, "w").members["a"]
    for at in range(member.start, member.start + member.packed, 97):
        bad = bytearray(data)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(BadInput) as caught:
            Archive(path, "w").read("a")
        assert caught.value.code == "zip.corrupt"


def test_bytes_behind_the_stream_are_corrupt(path: Path) -> None:
    pack(path, ("a", b"x" * 1000))
    data = path.read_bytes()
    cut = data.index(b"PK\1\2")
    packed = Archive(path, "w").members["a"].packed
    longer = bytearray(data[:cut] + b"hidden" + data[cut:])
    central = cut + 6
    struct.pack_into("<L", longer, central + 20, packed + 6)
    struct.pack_into("<L", longer, longer.index(b"PK\5\6") + 16, central)
    path.write_bytes(longer)
    with pytest.raises(BadInput) as caught:
        Archive(path, "w").read("a")
    assert (caught.value.code, "follow" in caught.value.why) == ("zip.corrupt", True)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\5\6" + bytes(5)])
def test_no_zip_at_all(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert refused(path) == {"zip.malformed"}


def test_a_cut_archive_is_malformed(path: Path) -> None:
    pack(path, ("a", noise()[:50_000]), ("b", b"x"))
    whole = path.read_bytes()
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        assert refused(path) == {"zip.malformed"}


def test_all_problems_are_raised_at_once(path: Path) -> None:
    pack(path, ("../a", b"1"), ("b", b"2"), ("b/c", b"3"), mode=0o100644)
    assert refused(path) == {"source.odd-path", "zip.file-and-folder"}
