"""kiln.source.deb: hostile packages are refused, sound ones come out canonical."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from kiln.errors import KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import DEB
from kiln.progress import Reporter, Silent
from kiln.source import ar as package_ar
from kiln.source.deb import Deb, Dropped
from kiln.source.entry import Entry
from kiln.source.tree import read_tree
from kiln.store import Store
from tests.helpers.debs import CONTROL, ar, deb, member, tar

Member = tuple[tarfile.TarInfo, bytes]
CONTROL_TAR = tar([(member("./control"), CONTROL.encode())])


def read(entry: Entry) -> bytes:
    return b"".join(entry.blocks())


def refusal(path: Path) -> str:
    with pytest.raises(KilnError) as caught:
        Deb(path).entries()
    return caught.value.code


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressions_give_the_same_entries(tmp_path: Path, suffix: str) -> None:
    path = deb(tmp_path / "t.deb", {"usr/bin/t": "hello", "etc/t.conf": "x"}, suffix=suffix)
    entries = Deb(path).entries()
    assert [(e.path, e.kind, e.mode, e.size) for e in entries] == [
        ("bin", "symlink", 0o777, 0),
        ("etc/t.conf", "file", 0o644, 1),
        ("usr/bin/t", "file", 0o644, 5),
    ]
    assert {e.path: read(e) for e in entries if e.kind == "file"}["usr/bin/t"] == b"hello"


def zstd_deb(tmp_path: Path, data: bytes, program: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a .zst member, and `program` as the only zstd of the machine."""
    (tmp_path / "bin").mkdir()
    if program:
        (tmp_path / "bin/zstd").write_text(program)
        (tmp_path / "bin/zstd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "t.deb"
    members = [("debian-binary", b"2.0\n"), ("control.tar", CONTROL_TAR), ("data.tar.zst", data)]
    path.write_bytes(ar(members))
    return path


def test_zstd_goes_through_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tar([(member("./a"), b"x" * 3_000_000)])
    path = zstd_deb(tmp_path, data, "#!/bin/sh\nexec /bin/cat\n", monkeypatch)
    (entry,) = Deb(path).entries()
    assert read(entry) == b"x" * 3_000_000


@pytest.mark.parametrize(
    ("program", "code"), [("", "source.no-zstd"), ("#!/bin/sh\nexit 1\n", "source.bad-deb")]
)
def test_zstd_that_cannot_be_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str
) -> None:
    assert refusal(zstd_deb(tmp_path, b"x", program, monkeypatch)) == code


def test_control_part(tmp_path: Path) -> None:
    control = CONTROL + " more\n .\n end\n"
    extra = {"postinst": "#!/bin/sh\n", "conffiles": "/etc/t\n", "md5sums": "0  etc/t\n"}
    package = Deb(deb(tmp_path / "t.deb", {"etc/t": ""}, control, extra))
    assert package.name == "tiny"
    assert list(package.control) == ["Package", "Version", "Architecture", "Description"]
    assert package.control["Description"] == "tiny\n more\n .\n end"
    assert package.scripts == {"postinst": "#!/bin/sh\n"}
    assert package.conffiles == ("/etc/t",)
    assert package.md5sums == "0  etc/t\n"


def test_old_names_of_folders_are_merged(tmp_path: Path) -> None:
    files: list[Member] = [
        (member("./"), b""),
        (member("./bin/", tarfile.DIRTYPE), b""),
        (member("./bin/sh"), b"shell"),
        (member("./lib64/ld.so", tarfile.SYMTYPE, linkname="../lib/ld-1.so"), b""),
        (member("./var/lock/", tarfile.DIRTYPE, mode=0o1777), b""),
        (member("./library"), b""),
    ]
    entries = {e.path: e for e in Deb(deb(tmp_path / "t.deb", files)).entries()}
    assert sorted(entries) == [
        "bin", "lib64", "library", "run/lock", "usr/bin", "usr/bin/sh", "usr/lib64/ld.so",
        "var/lock", "var/run",
    ]  # fmt: skip
    assert (entries["bin"].kind, entries["bin"].target) == ("symlink", "usr/bin")
    assert (entries["var/lock"].kind, entries["var/lock"].target) == ("symlink", "/run/lock")
    assert entries["usr/lib64/ld.so"].target == "../lib/ld-1.so"
    assert entries["run/lock"].mode == 0o1777


def test_the_links_of_newer_base_files_are_the_same(tmp_path: Path) -> None:
    files: list[Member] = [
        (member("./bin", tarfile.SYMTYPE, linkname="usr/bin"), b""),
        (member("./usr/bin/", tarfile.DIRTYPE), b""),
    ]
    entries = Deb(deb(tmp_path / "t.deb", files)).entries()
    assert [(e.path, e.kind, e.target) for e in entries] == [
        ("bin", "symlink", "usr/bin"),
        ("usr/bin", "dir", ""),
    ]


def test_a_merged_link_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    files = [(member("./bin", tarfile.SYMTYPE, linkname="/tmp/evil"), b"")]
    assert refusal(deb(tmp_path / "t.deb", files)) == "source.bad-link"


@pytest.mark.parametrize(
    "name",
    ["../x", "./../x", "/etc/x", "./a/../x", "./a//x", "././x", "./a\nb", "./a\x7f", "./a\udcff"],
)
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    assert refusal(deb(tmp_path / "t.deb", [(member(name), b"")])) == "source.odd-path"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_special_files_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = deb(tmp_path / "t.deb", [(member("./dev/x", kind), b"")])
    assert refusal(path) == "source.special-file"


def test_all_faults_at_once(tmp_path: Path) -> None:
    files = [(member("../x"), b""), (member("./p", tarfile.FIFOTYPE), b""), (member("./ok"), b"")]
    with pytest.raises(Problems) as caught:
        Deb(deb(tmp_path / "t.deb", files)).entries()
    assert [e.code for e in caught.value.errors] == ["source.odd-path", "source.special-file"]


def test_set_id_bits_are_dropped_and_told(tmp_path: Path) -> None:
    files = [
        (member("./usr/bin/su", mode=0o4755), b""),
        (member("./usr/bin/wall", mode=0o2755, gid=5, gname="tty"), b""),
        (member("./var/local/", tarfile.DIRTYPE, mode=0o2775, gid=50, gname="staff"), b""),
        (member("./var/open/", tarfile.DIRTYPE, mode=0o777), b""),
        (member("./tmp/", tarfile.DIRTYPE, mode=0o1777), b""),
        (member("./root/", tarfile.DIRTYPE, mode=0o700), b""),
    ]
    package = Deb(deb(tmp_path / "t.deb", files))
    modes = {e.path: e.mode for e in package.entries()}
    assert modes["usr/bin/su"] == modes["usr/bin/wall"] == 0o755
    assert modes["var/local"] == 0o755, "gid 0 must not write where staff could"
    assert modes["var/open"] == 0o775
    assert (modes["tmp"], modes["root"]) == (0o1777, 0o700)
    assert Dropped("usr/bin/su", 0o4755, 0o755, "0:0") in package.dropped
    assert [d.path for d in package.dropped] == [
        "usr/bin/su", "usr/bin/wall", "var/local", "var/open",
    ]  # fmt: skip


def test_hardlinks_become_equal_files(tmp_path: Path) -> None:
    files = [
        (member("./bin/gzip", mode=0o755), b"gz"),
        (member("./usr/bin/uncompress", tarfile.LNKTYPE, linkname="./bin/gzip"), b""),
    ]
    entries = {e.path: e for e in Deb(deb(tmp_path / "t.deb", files)).entries()}
    link = entries["usr/bin/uncompress"]
    assert (link.kind, link.mode, link.size, read(link)) == ("file", 0o755, 2, b"gz")


@pytest.mark.parametrize("target", ["/etc/shadow", "../../etc/shadow", "./not/there"])
def test_hardlinks_that_leave_the_package_are_refused(tmp_path: Path, target: str) -> None:
    files = [(member("./x", tarfile.LNKTYPE, linkname=target), b"")]
    assert refusal(deb(tmp_path / "t.deb", files)) in ("source.bad-link", "source.odd-path")


def test_a_file_below_a_link_is_refused(tmp_path: Path) -> None:
    files = [
        (member("./a", tarfile.SYMTYPE, linkname="/etc"), b""),
        (member("./a/passwd"), b"evil"),
    ]
    assert refusal(deb(tmp_path / "t.deb", files)) == "source.below-no-folder"


def test_two_files_that_merge_to_one_are_refused(tmp_path: Path) -> None:
    path = deb(tmp_path / "t.deb", {"bin/x": "1", "usr/bin/x": "2"})
    assert refusal(path) == "source.path-clash"


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_every_cut_is_noticed(tmp_path: Path, suffix: str) -> None:
    whole = deb(tmp_path / "t.deb", {"usr/bin/t": "hello" * 400}, suffix=suffix).read_bytes()
    for size in range(0, len(whole) - 1, max(1, len(whole) // 25)):
        (tmp_path / "cut.deb").write_bytes(whole[:size])
        assert refusal(tmp_path / "cut.deb") == "source.bad-deb", size


def test_a_tar_that_ends_early_in_a_whole_member_is_refused(tmp_path: Path) -> None:
    data = tar([(member("./a"), b"x" * 600), (member("./b"), b"y")])
    control = tar([(member("./control"), CONTROL.encode())])
    damaged = bytearray(data)
    damaged[1536 + 148 : 1536 + 156] = b"0000000\0"  # the second header's checksum
    for bad in (data[:1536], data[:2048], bytes(damaged)):
        path = tmp_path / "t.deb"
        path.write_bytes(
            ar(
                [
                    ("debian-binary", b"2.0\n"),
                    ("control.tar.gz", gzip.compress(control)),
                    ("data.tar.gz", gzip.compress(bad)),
                ]
            )
        )
        assert refusal(path) == "source.bad-deb"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 a zip",
        ar([]),
        ar([("control.tar", CONTROL_TAR), ("data.tar", tar([]))]),
        ar([("debian-binary", b"3.0\n"), ("control.tar", CONTROL_TAR), ("data.tar", tar([]))]),
        ar([("debian-binary", b"2.0\n"), ("data.tar", tar([]))]),
        ar([("debian-binary", b"2.0\n"), ("control.tar", CONTROL_TAR)]),
        ar([("debian-binary", b"2.0\n"), ("control.tar", tar([])), ("data.tar", tar([]))]),
        ar([("debian-binary", b"2.0\n"), ("control.tar.Z", b""), ("data.tar", tar([]))]),
        ar([("debian-binary", b"2.0\n"), ("control.tar", CONTROL_TAR), ("evil", b"")]),
        ar([("debian-binary", b"2.0\n"), *[("control.tar", CONTROL_TAR)] * 2]),
        ar([("debian-binary", b"2.0\n"), ("control.tar", b"x" * 2048), ("data.tar", tar([]))]),
    ],
)
def test_what_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.deb"
    path.write_bytes(content)
    assert refusal(path) == "source.bad-deb"


@pytest.mark.parametrize("control", ["Package: x\n", "no colon\n", "", CONTROL + "Package: y\n"])
def test_an_unsound_control_file_is_refused(tmp_path: Path, control: str) -> None:
    assert refusal(deb(tmp_path / "t.deb", {}, control)) == "source.bad-deb"


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.source.deb.MAX_DATA", 1 << 20)
    path = deb(tmp_path / "t.deb", {"zeros": "0" * (2 << 20)})
    assert path.stat().st_size < 10_000
    assert refusal(path) == "source.bomb"


def test_members_may_be_signed(tmp_path: Path) -> None:
    path = tmp_path / "t.deb"
    path.write_bytes(
        ar(
            [
                ("debian-binary", b"2.0\n"),
                ("control.tar", CONTROL_TAR),
                ("data.tar", tar([])),
                ("_gpgorigin", b"sig"),
            ]
        )
    )
    assert [m.name for m in package_ar.members(path)][-1] == "_gpgorigin"
    assert Deb(path).entries() == []


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def run_step(store: Store, path: Path, reporter: Reporter, tmp: Path) -> str:
    inputs = {"deb": store.blobs.put_file(path)}
    return DEB.run(Context(store, inputs, {}, reporter, tmp))["out"].sha256


def test_the_step_writes_a_tree_and_tells_what_it_dropped(store: Store, tmp_path: Path) -> None:
    notes = Notes()
    path = deb(tmp_path / "t.deb", [(member("./bin/su", mode=0o4755), b"su")])
    tree = run_step(store, path, notes, tmp_path)
    entries = read_tree(store.blobs.path(tree))
    assert [(e.path, e.mode) for e in entries if e.kind == "file"] == [("usr/bin/su", 0o755)]
    assert notes.said == ["tiny 1.0-1: /usr/bin/su was 4755 0:0, is 0755"]


def test_the_tree_does_not_depend_on_packing_or_order(store: Store, tmp_path: Path) -> None:
    files = {"usr/b": "2", "usr/a": "1"}
    trees = {
        run_step(store, deb(tmp_path / "t.deb", chosen, suffix=suffix), Silent(), tmp_path)
        for suffix in (".gz", ".xz")
        for chosen in (files, dict(reversed(files.items())))
    }
    assert len(trees) == 1
