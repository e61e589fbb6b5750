"""Wheels: RECORD (W6), permissions (W9), scripts and .data (W11), names, and installing."""

from __future__ import annotations

import csv
import hashlib
import io
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.source.entry import Entry
from kiln.source.wheel import Wheel
from tests.helpers.wheels import INSTALL, Made, row

SITE = INSTALL.site


def opened(made: Made, folder: Path) -> Wheel:
    path = made.write(folder)
    return Wheel(path, path.name)


def refused(made: Made, folder: Path) -> list[str]:
    with pytest.raises((BadInput, Problems)) as caught:
        opened(made, folder)
    error: KilnError = caught.value
    return [e.code for e in error.errors] if isinstance(error, Problems) else [error.code]


def read(entry: Entry) -> bytes:
    with entry.open() as source:
        return source.read()


def installed(wheel: Wheel, **replaced: bytes | None) -> dict[str, Entry]:
    return {e.path: e for e in wheel.entries(INSTALL, replaced)}


def rows(entries: dict[str, Entry], wheel: Wheel) -> dict[str, tuple[str, str]]:
    text = read(entries[f"{SITE}/{wheel.dist_info}/RECORD"]).decode()
    return {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(text))}


# ---- a good wheel --------------------------------------------------------------------------


def test_a_wheel_becomes_entries(tmp_path: Path) -> None:
    wheel = opened(Made(name="Demo_Pkg", version="1.0+cpu"), tmp_path)
    assert (wheel.name, wheel.version) == ("demo-pkg", "1.0+cpu")
    assert wheel.dist_info == "Demo_Pkg-1.0+cpu.dist-info"
    entries = installed(wheel)
    assert list(entries) == sorted(entries, key=str.encode)
    assert {path.removeprefix(SITE + "/") for path in entries} == {
        "demo/__init__.py",
        "Demo_Pkg-1.0+cpu.dist-info/METADATA",
        "Demo_Pkg-1.0+cpu.dist-info/WHEEL",
        "Demo_Pkg-1.0+cpu.dist-info/INSTALLER",
        "Demo_Pkg-1.0+cpu.dist-info/RECORD",
    }
    assert read(entries[f"{SITE}/demo/__init__.py"]) == b"x = 1\n"
    assert read(entries[f"{SITE}/{wheel.dist_info}/INSTALLER"]) == b"kiln\n"
    assert wheel.read("demo/__init__.py") == b"x = 1\n"
    wheel.verify()


def test_every_row_of_the_new_record_matches_its_file(tmp_path: Path) -> None:
    made = Made(
        files={
            "demo/a.py": b"1",
            "demo/odd, name.json": b"{}",  # a comma, as in vLLM's own wheel
            "demo-1.0.data/scripts/tool": b"#!python\nrun()\n",
            "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
        }
    )
    wheel = opened(made, tmp_path)
    entries = installed(wheel)
    found = rows(entries, wheel)
    own = f"{wheel.dist_info}/RECORD"
    assert found.pop(own) == ("", "")
    assert "demo/odd, name.json" in found
    assert "../../../bin/demo" in found
    assert len(found) == len(entries) - 1
    for path, entry in entries.items():
        if path != f"{SITE}/{own}":
            relative = INSTALL.relative(path)
            assert [relative, *found[relative]] == row(relative, read(entry))
            assert entry.sha256 in ("", hashlib.sha256(read(entry)).hexdigest())


def test_record_is_the_same_however_the_wheel_was_zipped(tmp_path: Path) -> None:
    files = {"demo/a.py": b"1", "demo/b.py": b"2"}
    one = opened(Made(files=files), tmp_path / "1")
    other = Made(files=dict(reversed(files.items())), date=(2107, 12, 31, 23, 59, 58), method=0)
    two = opened(other, tmp_path / "2")
    assert one.record(INSTALL) == two.record(INSTALL)


def test_sha512_rows_are_checked_and_rewritten_as_sha256(tmp_path: Path) -> None:
    made = Made()
    own = "demo-1.0.dist-info/RECORD"
    made.rows = [*(row(p, d, "sha512") for p, d in made.members().items()), [own, "", ""]]
    wheel = opened(made, tmp_path)
    found = rows(installed(wheel), wheel)
    assert all(digest.startswith("sha256=") for path, (digest, _) in found.items() if path != own)
    wheel.verify()


def test_two_threads_may_read_one_wheel(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    wheel = opened(Made(files={f"demo/{n}.bin": data for n in range(20)}), tmp_path)
    with ThreadPoolExecutor(4) as pool:
        names = [name for name in wheel.names() if name.endswith(".bin")] * 3
        assert set(pool.map(wheel.read, names)) == {data}


# ---- replacing -----------------------------------------------------------------------------


def test_changed_new_and_deleted_files_and_record_follows(tmp_path: Path) -> None:
    made = Made(files={"demo/a.py": b"1", "demo/b.py": b"2"}, modes={"demo/a.py": 0o100755})
    wheel = opened(made, tmp_path)
    changes = {"demo/a.py": b"new", "demo/b.py": None, "demo/c.py": b"3"}
    entries = {e.path: e for e in wheel.entries(INSTALL, changes)}
    assert read(entries[f"{SITE}/demo/a.py"]) == b"new"
    assert entries[f"{SITE}/demo/a.py"].mode == 0o755
    assert entries[f"{SITE}/demo/c.py"].mode == 0o644
    assert f"{SITE}/demo/b.py" not in entries
    found = rows(entries, wheel)
    assert ["demo/a.py", *found["demo/a.py"]] == row("demo/a.py", b"new")
    assert "demo/c.py" in found
    assert "demo/b.py" not in found
    assert read(entries[f"{SITE}/{wheel.dist_info}/RECORD"]) == wheel.record(INSTALL, changes)


def test_a_script_can_be_left_out(tmp_path: Path) -> None:
    wheel = opened(Made(files={"demo-1.0.data/scripts/tool": b"#!python\n"}), tmp_path)
    paths = {e.path for e in wheel.entries(INSTALL, {"../../../bin/tool": None})}
    assert "usr/local/bin/tool" not in paths


def test_leaving_out_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        opened(Made(), tmp_path).entries(INSTALL, {"demo/gone.py": None})
    assert caught.value.code == "wheel.replace-missing"


def test_a_replacement_outside_the_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        opened(Made(), tmp_path).entries(INSTALL, {"../" * 9 + "etc/passwd": b"x"})
    assert caught.value.code == "source.odd-path"


# ---- permissions, scripts, data -------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "becomes"),
    [(0o755, 0o755), (0o664, 0o644), (0o200, 0o644), (0o100, 0o755), (0o4755, 0o755), (0, 0o644)],
)
def test_modes_are_0755_with_any_x_bit_else_0644(tmp_path: Path, mode: int, becomes: int) -> None:
    made = Made(files={"demo/f": b"x"}, modes={"demo/f": stat.S_IFREG | mode})
    assert installed(opened(made, tmp_path))[f"{SITE}/demo/f"].mode == becomes


def test_a_zip_link_is_refused(tmp_path: Path) -> None:
    made = Made(files={"demo/l": b"/etc/passwd"}, modes={"demo/l": stat.S_IFLNK | 0o777})
    assert refused(made, tmp_path) == ["zip.odd-type"]


def test_console_scripts_start_with_the_image_python(tmp_path: Path) -> None:
    text = (
        b"[console_scripts]\nvllm = vllm.cli.main:main\n"
        b"tool = a.b:C.run [extra]\n[gui_scripts]\ngui=a:g\n[other]\nx = not % a script\n"
    )
    made = Made(files={"demo-1.0.dist-info/entry_points.txt": text})
    one = installed(opened(made, tmp_path / "(scratch) one"))
    two = installed(opened(made, tmp_path / "two"))
    script = one["usr/local/bin/vllm"]
    assert script.mode == 0o755
    assert read(script).startswith(b"#!/usr/bin/python3.11\n")
    assert b"from vllm.cli.main import main\n" in read(script)
    assert b"from a.b import C\n" in read(one["usr/local/bin/tool"])
    assert b"C.run()" in read(one["usr/local/bin/tool"])
    assert {"usr/local/bin/gui"} < one.keys()
    assert "usr/local/bin/x" not in one
    assert {p: read(e) for p, e in one.items()} == {p: read(e) for p, e in two.items()}
    assert not any(str(tmp_path).encode() in read(entry) for entry in one.values())
    compile(read(script), "vllm", "exec")


@pytest.mark.parametrize(
    "line",
    [
        "../evil = a:b",
        "a/b = a:b",
        "x = os.system('id')",
        "x = a",
        "x = a:b;c",
        "= a:b",
        ".x = a:b",
    ],
)
def test_odd_entry_points_are_refused(tmp_path: Path, line: str) -> None:
    text = f"[console_scripts]\n{line}\n".encode()
    made = Made(files={"demo-1.0.dist-info/entry_points.txt": text})
    assert refused(made, tmp_path) == ["wheel.entry-point"]


def test_data_goes_to_the_right_places(tmp_path: Path) -> None:
    made = Made(
        files={
            "demo-1.0.data/purelib/p.py": b"p",
            "demo-1.0.data/platlib/q.so": b"q",
            "demo-1.0.data/scripts/tool": b"#!python\nimport demo\n",
            "demo-1.0.data/scripts/gui": b"#!pythonw -E\r\nx\n",
            "demo-1.0.data/scripts/binary": b"\x7fELF",
            "demo-1.0.data/headers/demo.h": b"h",
            "demo-1.0.data/data/share/man/man1/demo.1": b"m",
        }
    )
    entries = installed(opened(made, tmp_path))
    found = {p: (read(e), e.mode) for p, e in entries.items() if "dist-info" not in p}
    assert found == {
        f"{SITE}/p.py": (b"p", 0o644),
        f"{SITE}/q.so": (b"q", 0o644),
        "usr/local/bin/tool": (b"#!/usr/bin/python3.11\nimport demo\n", 0o755),
        "usr/local/bin/gui": (b"#!/usr/bin/python3.11\nx\n", 0o755),
        "usr/local/bin/binary": (b"\x7fELF", 0o755),
        "usr/local/include/python3.11/demo/demo.h": (b"h", 0o644),
        "usr/local/share/man/man1/demo.1": (b"m", 0o644),
    }


@pytest.mark.parametrize(
    "path", ["demo-1.0.data/nowhere/f", "demo-1.0.data/f", "other-2.0.data/purelib/f"]
)
def test_data_that_nobody_knows_is_refused(tmp_path: Path, path: str) -> None:
    assert refused(Made(files={path: b"x"}), tmp_path) == ["wheel.odd-data"]


@pytest.mark.parametrize(
    "files",
    [
        {"demo.py": b"1", "demo-1.0.data/purelib/demo.py": b"2"},
        {
            "demo-1.0.data/scripts/demo": b"1",
            "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
        },
    ],
)
def test_two_files_for_one_path_are_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(BadInput) as caught:
        opened(Made(files=files), tmp_path).entries(INSTALL)
    assert caught.value.code == "wheel.path-clash"


# ---- names and versions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"filename": "other-1.0-py3-none-any.whl"}, ["wheel.name-mismatch"]),
        ({"filename": "demo-1.1-py3-none-any.whl"}, ["wheel.name-mismatch"]),
        ({"filename": "demo.whl"}, ["wheel.filename"]),
        ({"filename": "demo-1.0.zip"}, ["wheel.filename"]),
        ({"dist_info": "demo-2.0.dist-info"}, ["wheel.name-mismatch"]),
        ({"dist_info": "demo-what.dist-info"}, ["wheel.version"]),
        ({"metadata": b"Name: demo\nVersion: 1.0+cpu\n"}, ["wheel.name-mismatch"] * 2),
        ({"metadata": b"Name: demo\nName: evil\nVersion: 1.0\n"}, ["wheel.metadata"]),
        ({"metadata": b"\n\nName: demo\n"}, ["wheel.metadata"]),
        ({"wheel": b"Wheel-Version: 2.0\n"}, ["wheel.format"]),
        ({"wheel": b"Tag: x\n"}, ["wheel.format"]),
        ({"without": frozenset({"demo-1.0.dist-info/METADATA"})}, ["wheel.missing-file"]),
        ({"without": frozenset({"demo-1.0.dist-info/WHEEL"})}, ["wheel.missing-file"]),
        ({"without": frozenset({"demo-1.0.dist-info/RECORD"})}, ["wheel.missing-file"]),
        ({"files": {"other-1.0.dist-info/METADATA": b""}}, ["wheel.dist-info"]),
    ],
)
def test_what_names_a_wheel_has_to_agree(
    tmp_path: Path, change: dict[str, object], codes: list[str]
) -> None:
    assert refused(replace(Made(), **change), tmp_path) == codes  # type: ignore[arg-type]


def test_equal_names_and_versions_may_be_spelled_differently(tmp_path: Path) -> None:
    made = Made(
        filename="Demo_Pkg-1.0.0-py3-none-any.whl",
        dist_info="demo.pkg-1.0.dist-info",
        metadata=b"Name: demo-pkg\nVersion: 1.0\n",
    )
    assert opened(made, tmp_path).name == "demo-pkg"


# ---- RECORD ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "codes"),
    [
        ([row("demo/__init__.py", b"x = 1\n")], ["wheel.record-duplicate"]),
        ([["../../etc/x", "", ""]], ["wheel.record-path"]),
        ([["/etc/x", "", ""]], ["wheel.record-path"]),
        ([["demo/./x", "", ""]], ["wheel.record-path"]),
        ([["demo/gone.py", "", ""]], ["wheel.record-absent"]),
        ([["a", "b"]], ["wheel.record-malformed"]),
        ([["a", "", "-1"]], ["wheel.record-malformed"]),
        ([["a", "md5=1B2M2Y8AsgTpgAmY7PhCfg", "0"]], ["wheel.record-hash"]),
        ([["a", "sha256=short", "0"]], ["wheel.record-hash"]),
        ([["a", "sha256", "0"], ["../b", "", ""]], ["wheel.record-hash", "wheel.record-path"]),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, rows: list[list[str]], codes: list[str]) -> None:
    assert refused(Made(more_rows=rows), tmp_path) == codes


def test_files_that_record_does_not_vouch_for_are_refused(tmp_path: Path) -> None:
    assert refused(Made(more=[("demo/evil.py", b"x")]), tmp_path) == ["wheel.record-missing"]
    made = Made()
    made.rows = [[path, "", ""] for path in made.members()]
    assert set(refused(made, tmp_path)) == {"wheel.record-hash"}


def test_a_wrong_size_is_refused_on_opening(tmp_path: Path) -> None:
    made = Made()
    made.rows = [[*row(path, data)[:2], "7"] for path, data in made.members().items()]
    assert refused(made, tmp_path) == ["wheel.record-size"] * 3


def forged(folder: Path) -> Wheel:
    """Two files of the right sizes and CRCs, and other bytes than RECORD says."""
    made = Made(files={"demo/a.py": b"good", "demo/b.py": b"fine", "demo/c.py": b"true"})
    made.rows = list(csv.reader(io.StringIO(made.record().decode())))
    made.files |= {"demo/a.py": b"evil", "demo/c.py": b"evil"}
    return opened(made, folder)


def test_a_wrong_hash_is_found_while_streaming(tmp_path: Path) -> None:
    wheel = forged(tmp_path)
    entries = installed(wheel)
    assert read(entries[f"{SITE}/demo/b.py"]) == b"fine"
    with pytest.raises(BadInput) as caught:
        read(entries[f"{SITE}/demo/a.py"])
    assert caught.value.code == "wheel.hash-mismatch"
    assert "demo/a.py" in caught.value.what
    with pytest.raises(BadInput) as caught:
        wheel.read("demo/a.py")
    assert caught.value.code == "wheel.hash-mismatch"


def test_verify_names_every_wrong_file(tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        forged(tmp_path).verify()
    assert [e.code for e in caught.value.errors] == ["wheel.hash-mismatch"] * 2
    assert [
        "demo/a.py" in caught.value.errors[0].what,
        "demo/c.py" in caught.value.errors[1].what,
    ] == [True, True]


def test_signatures_are_left_out_with_a_note(tmp_path: Path) -> None:
    made = Made(more=[("demo-1.0.dist-info/RECORD.jws", b"{}")])
    wheel = opened(made, tmp_path)
    assert "RECORD.jws" in wheel.notes[0]
    assert f"{SITE}/demo-1.0.dist-info/RECORD.jws" not in installed(wheel)


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        opened(Made(), tmp_path).read("nope")
    assert caught.value.code == "wheel.no-member"
