"""Hostile sdists, hostile results, and wheels in canonical form."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from kiln.canonical import JSON
from kiln.compile import component, sdist
from kiln.compile.component import built_name
from kiln.compile.repack import repack
from kiln.compile.script import files_below, missing
from kiln.compile.sdist import read_sdist
from kiln.errors import BadInput, JudgedBad, KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import COMPONENT
from kiln.progress import Silent
from kiln.source.tree import unpack
from kiln.source.wheel import Wheel
from kiln.store import Store
from tests.helpers.wheels import INSTALL, Made

NAME = "demo-1.0.tar.gz"
Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime, info.uid = kind, len(data), 1234567890, 1001
    for field, value in more.items():
        setattr(info, field, value)
    return info, data


def packed(folder: Path, members: Iterable[Member], form: int = tarfile.GNU_FORMAT) -> Path:
    path = folder / NAME
    with tarfile.open(path, "w:gz", format=form) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return path


def codes(error: KilnError) -> list[str]:
    return [e.code for e in (error.errors if isinstance(error, Problems) else (error,))]


def refusals(folder: Path, *members: Member) -> list[str]:
    with pytest.raises(KilnError) as error:
        read_sdist(packed(folder, members), NAME, folder)
    return codes(error.value)


# ---- sdists ---------------------------------------------------------------------------------


def test_a_sound_sdist(tmp_path: Path) -> None:
    members = [
        member("demo-1.0", kind=tarfile.DIRTYPE, mode=0o700),
        member("demo-1.0/run.sh", b"#!/bin/sh\n", mode=0o4775),
        member("demo-1.0/setup.py", b"setup()\n", mode=0o600),
        member("demo-1.0/src/a.c", b"int a;\n"),
        member("demo-1.0/src/link", kind=tarfile.SYMTYPE, linkname="../setup.py"),
    ]
    entries = read_sdist(packed(tmp_path, members), NAME, tmp_path)
    assert [(e.path, e.kind, e.mode) for e in entries] == [
        ("run.sh", "file", 0o755),
        ("setup.py", "file", 0o644),
        ("src/a.c", "file", 0o644),
        ("src/link", "symlink", 0o777),
    ]
    unpack(entries, tmp_path / "out")
    assert (tmp_path / "out/src/link").read_bytes() == b"setup()\n"
    assert (tmp_path / "out/src/a.c").stat().st_mtime == 315532800


def test_long_names_of_both_formats(tmp_path: Path) -> None:
    name = "demo-1.0/" + "/".join(["d" * 90] * 3) + "/é.py"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        entries = read_sdist(packed(tmp_path, [member(name, b"x")], form), NAME, tmp_path)
        assert [e.path for e in entries] == [name.removeprefix("demo-1.0/")]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "demo-1.0/../../x", "../x", "demo-1.0/./x", "demo-1.0//x"]
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    assert "source.odd-path" in refusals(tmp_path, member("demo-1.0/ok"), member(name, b"x"))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "..", "../..", "a/../../../x"])
def test_links_that_lead_out(tmp_path: Path, target: str) -> None:
    link = member("demo-1.0/link", kind=tarfile.SYMTYPE, linkname=target)
    assert refusals(tmp_path, link) == ["sdist.link"]


def test_a_file_below_a_link(tmp_path: Path) -> None:
    link = member("demo-1.0/d", kind=tarfile.SYMTYPE, linkname="e")
    assert refusals(tmp_path, link, member("demo-1.0/d/x", b"x")) == ["source.below-no-folder"]


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_what_is_no_plain_file(tmp_path: Path, kind: bytes) -> None:
    odd = member("demo-1.0/odd", kind=kind, linkname="demo-1.0/ok")
    assert refusals(tmp_path, member("demo-1.0/ok", b"x"), odd) == ["sdist.odd-type"]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    twice = [member("demo-1.0/a", b"1"), member("demo-1.0/a", b"2")]
    assert refusals(tmp_path, *twice) == ["sdist.duplicate"]


def test_two_folders_at_the_top(tmp_path: Path) -> None:
    assert refusals(tmp_path, member("a/x"), member("b/x")) == ["sdist.top", "sdist.duplicate"]
    assert refusals(tmp_path) == ["sdist.top"]


def test_all_problems_at_once(tmp_path: Path) -> None:
    found = refusals(
        tmp_path,
        member("demo-1.0/../x", b"x"),
        member("demo-1.0/dev", kind=tarfile.CHRTYPE),
        member("demo-1.0/l", kind=tarfile.SYMTYPE, linkname="/x"),
    )
    assert found == ["source.odd-path", "sdist.odd-type", "sdist.link"]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdist, "SMALL", 1 << 20)
    assert refusals(tmp_path, member("demo-1.0/zeros", bytes(8 << 20))) == ["sdist.bomb"]
    assert (tmp_path / "sdist.tar").stat().st_size <= (1 << 20) + (1 << 20)


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdist, "MAX_MEMBERS", 3)
    assert refusals(tmp_path, *(member(f"demo-1.0/{n}") for n in range(4))) == ["sdist.bomb"]


@pytest.mark.parametrize("cut", [0, 5, 60])
def test_a_cut_archive(tmp_path: Path, cut: int) -> None:
    path = packed(tmp_path, [member("demo-1.0/a", os.urandom(4000))])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput) as error:
        read_sdist(path, NAME, tmp_path)
    assert error.value.code in ("sdist.damaged", "sdist.top")


def test_what_is_no_tar(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(gzip.compress(b"no tar at all" * 100))
    with pytest.raises(BadInput) as error:
        read_sdist(path, NAME, tmp_path)
    assert error.value.code == "sdist.damaged"
    with pytest.raises(BadInput) as error:
        read_sdist(path, "demo-1.0.zip", tmp_path)
    assert error.value.code == "sdist.name"


# ---- what a script leaves ---------------------------------------------------------------------


def test_results_are_plain_files_only(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"")
    assert files_below(tmp_path) == [tmp_path / "a", tmp_path / "b/x"]
    (tmp_path / "b/link").symlink_to("/etc/passwd")
    with pytest.raises(JudgedBad) as error:
        files_below(tmp_path)
    assert error.value.code == "compile.odd-output"
    assert "b/link" in error.value.what


def test_a_linked_folder_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(JudgedBad):
        files_below(tmp_path)


def test_each_absent_file_is_named() -> None:
    errors = missing(["a", "b", "lib/_C.*"], ["a", "lib/_C.cpython-311.so"], "the wheel")
    assert [(e.code, e.what) for e in errors] == [("compile.missing-file", "the wheel has no b")]
    assert [e.what for e in missing(["x*"], [], "it")] == ["it has no x*"]


# ---- the component's own judgement -----------------------------------------------------------


def build(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[Made]
) -> tuple[bytes, str]:
    """Run COMPONENT with a script that leaves these wheels."""

    def script(context: Context, *_: object) -> Path:
        out = context.tmp / "out"
        out.mkdir()
        for one in made:
            one.write(out)
        return out

    monkeypatch.setattr(component, "run_script", script)
    source = store.blobs.put_file(packed(tmp_path, [member("demo-1.0/setup.py", b"")]))
    scratch = tmp_path / "act"
    scratch.mkdir()
    params: dict[str, JSON] = {
        "name": "demo", "version": "1.0", "sdist": NAME, "script": "build.sh",
        "expect": ["demo/__init__.py"],
        "root": {"trees": 0, "wheels": [], "install": asdict(INSTALL)},
    }  # fmt: skip
    context = Context(store, {"sdist": source}, params, Silent(), scratch)
    out = COMPONENT.run(context)["out"]
    return store.blobs.read(out.sha256), out.sha256


def test_a_built_wheel_is_repacked(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, sha = build(store, tmp_path, monkeypatch, [Made()])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    wheel = Wheel(store.blobs.path(sha), built_name("demo", "1.0"))
    wheel.verify()
    assert (wheel.name, wheel.version) == ("demo", "1.0")


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ([], "compile.no-wheel"),
        ([Made(), Made(version="2.0")], "compile.no-wheel"),
        ([Made(version="1.1.dev0")], "compile.other-wheel"),
        ([Made(name="other", files={"demo/__init__.py": b""})], "compile.other-wheel"),
        ([Made(files={"demo.py": b""})], "compile.missing-file"),
    ],
)
def test_other_results_are_refused(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[Made],
    code: str,
) -> None:
    with pytest.raises(JudgedBad) as error:
        build(store, tmp_path, monkeypatch, made)
    assert error.value.code == code


def test_a_path_of_this_machine_is_a_leak(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.fsencode(store.root / "roots" / "abc" / "usr")
    made = Made(files={"demo/__init__.py": b"", "demo/_C.so": b"\x7fELF" + path})
    with pytest.raises(JudgedBad) as error:
        build(store, tmp_path, monkeypatch, [made])
    assert error.value.code == "compile.leak"
    assert "demo/_C.so" in error.value.what


def test_order_dates_and_compression_leave_no_trace(tmp_path: Path) -> None:
    files = {"demo/a.py": b"a = 1\n" * 99, "demo/__init__.py": b"", "demo/z.so": b"\x7fELF"}
    one = Made(files=files, modes={"demo/z.so": 0o100755}, date=(2020, 1, 1, 0, 0, 0))
    two = Made(
        files=dict(reversed(files.items())),
        modes={"demo/z.so": 0o100775, "demo/a.py": 0o100600},
        method=zipfile.ZIP_STORED,
        date=(2026, 11, 29, 1, 2, 4),
    )
    written = []
    for number, made in enumerate((one, two)):
        path = made.write(tmp_path / str(number))
        out = io.BytesIO()
        repack(Wheel(path, path.name), out)
        written.append(out.getvalue())
    assert written[0] == written[1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        names = archive.namelist()
        assert names[-1].endswith("/RECORD")
        assert names[:-1] == sorted(names[:-1])
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in archive.infolist()}
    assert (modes["demo/z.so"], modes["demo/a.py"]) == (0o755, 0o644)
