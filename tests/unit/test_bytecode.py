"""Bytecode: what is compiled, where it goes, and the program that does it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from kiln.canonical import JSON
from kiln.compile import bytecode, inside
from kiln.compile.bytecode import CHECKED, UNCHECKED, sources
from kiln.graph.action import Context
from kiln.graph.steps import BYTECODE
from kiln.progress import Silent
from kiln.source.entry import Entry, data_entry
from kiln.source.pycache import cache_path, cache_tag
from kiln.source.tree import read_tree, write_tree
from kiln.store import Store
from tests.helpers.wheels import INSTALL

SITE = INSTALL.site


def paths(*entries: str) -> list[str]:
    found = sources([data_entry(path, b"") for path in entries], "cpython-311")
    return [entry.path for entry in found]


def test_what_python_imports_is_compiled() -> None:
    assert paths(f"{SITE}/a/b.py", "usr/lib/python3/dist-packages/c.py") == [
        f"{SITE}/a/b.py",
        "usr/lib/python3/dist-packages/c.py",
    ]


def test_what_python_does_not_import_is_not() -> None:
    assert paths("usr/share/gdb/auto-load/x.py", "usr/bin/y.py", f"{SITE}/a.pyi", "z.py") == []
    assert paths(f"{SITE}/.wh.a.py", f"{SITE}/b/.c.py", f"{SITE}/.d/e.py") == [f"{SITE}/.d/e.py"]


def test_links_are_not_followed() -> None:
    assert sources([Entry(f"{SITE}/a.py", "symlink", 0o777, target="b.py")], "cpython-311") == []


def test_a_wheels_own_bytecode_stays() -> None:
    own = f"{SITE}/__pycache__/a.cpython-311.pyc"
    assert paths(f"{SITE}/a.py", own, f"{SITE}/b.py") == [f"{SITE}/b.py"]
    assert paths(f"{SITE}/a.py", f"{SITE}/__pycache__/a.cpython-310.pyc") == [f"{SITE}/a.py"]


def test_names_are_pythons_own() -> None:
    assert cache_path("a/b.c.py", sys.implementation.cache_tag) == importlib.util.cache_from_source(
        "a/b.c.py"
    )
    assert cache_path("b.py", "cpython-311") == "__pycache__/b.cpython-311.pyc"
    assert cache_tag("/usr/bin/python3.11") == "cpython-311"
    with pytest.raises(ValueError, match="which Python"):
        cache_tag("/usr/bin/python3")


def test_the_versions_of_step_and_program_belong_together() -> None:
    """Another program may give other bytes: then raise BYTECODE's version, and both here."""
    program = hashlib.sha256(Path(inside.__file__).read_bytes()).hexdigest()
    assert (BYTECODE.version, program) == (1, PROGRAM)


PROGRAM = "692ca0e688200dc88cd3c65324401e2b9913f4c27d0b0b6a2fda93efccc4a338"


# ---- the program, run by this Python instead of the image's ------------------------------------


def compiled(
    folder: Path, files: dict[str, bytes], flags: int, jobs: int = 2, crash: bytes = b""
) -> dict[str, bytes]:
    """Run the program with `folder` in place of /build; results by name.

    crash: a source that holds these bytes kills the compiler, as a fault of it would.
    """
    for name in ("src", "out"):
        (folder / name).mkdir(parents=True)
    for number, data in enumerate(files.values()):
        (folder / "src" / str(number)).write_bytes(data)
    (folder / "names").write_bytes(b"".join(name.encode() + b"\0" for name in files))
    text = Path(inside.__file__).read_text().replace("/build/", f"{folder}/")
    if crash:
        kill = f"{crash!r} in source and os.kill(os.getpid(), 9)\n        code = compile("
        text = text.replace("code = compile(", kill)
    env = {"PYTHONHASHSEED": "0"}
    argv = [sys.executable, "-s", "-S", "-W", "ignore", "-c", text, str(jobs), str(flags)]
    subprocess.run(argv, check=True, env=env)
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}


def test_pycs_are_hash_based_and_name_the_final_path(tmp_path: Path) -> None:
    source = b"def f():\n    raise ValueError\n"
    for flags in (UNCHECKED, CHECKED):
        out = compiled(tmp_path / str(flags), {"/usr/lib/python3/m.py": source}, flags)
        assert out["0"][:4] == importlib.util.MAGIC_NUMBER
        assert out["0"][4:8] == flags.to_bytes(4, "little")
        assert out["0"][8:16] == importlib.util.source_hash(source)
        assert b"/usr/lib/python3/m.py" in out["0"]
        assert os.fsencode(tmp_path) not in out["0"]


def test_python_takes_them(tmp_path: Path) -> None:
    out = compiled(tmp_path / "work", {"/m.py": b"value = 42\n"}, UNCHECKED)
    (tmp_path / "m.py").write_bytes(b"value = 0\n")  # unchecked: not even looked at
    cached = Path(importlib.util.cache_from_source(str(tmp_path / "m.py")))
    cached.parent.mkdir()
    cached.write_bytes(out["0"])
    code = "import m; print(m.value)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.PIPE
    )
    assert done.stdout == b"42\n"


def test_what_does_not_compile_is_said_and_harms_nobody(tmp_path: Path) -> None:
    files = {
        "/ok.py": b"x = 1\n",
        "/py2.py": b"\nprint 'hello'\n",
        "/null.py": b"x = 1\0\n",
        "/latin.py": b"x = 'caf\xe9'\n",
        "/deep.py": b"(" * 100_000,
        "/tab.py": b"if 1:\n\tx\n        y\n",
        "/fine.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    }
    out = compiled(tmp_path / "w", files, UNCHECKED)
    assert {"0", "6"} <= out.keys()
    errors = {name: text.decode() for name, text in out.items() if name.endswith(".error")}
    assert sorted(errors) == ["1.error", "2.error", "3.error", "4.error", "5.error"]
    assert errors["1.error"].startswith("SyntaxError in line 2: ")
    assert errors["5.error"].startswith("TabError in line 3: ")
    assert all("\n" not in text for text in errors.values())


def test_neither_order_nor_jobs_change_a_byte(tmp_path: Path) -> None:
    files = {
        f"/{path.name}": path.read_bytes()
        for path in sorted(Path(os.__file__).parent.glob("*.py"))[:25]
    }
    one = compiled(tmp_path / "one", files, UNCHECKED, jobs=1)
    two = compiled(tmp_path / "two", dict(reversed(files.items())), UNCHECKED, jobs=7)
    count = len(files)
    assert len(one) == count
    assert {str(count - 1 - int(name)): data for name, data in two.items()} == one


# ---- the step, with the sandbox left out --------------------------------------------------------


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: dict[str, bytes]
) -> tuple[list[Entry], bytes, list[str], list[str]]:
    """Run BYTECODE on three files, where the sandbox leaves `results` in /build/out."""
    ran: list[str] = []

    def check(_: object, command: object, __: object, what: str, ___: object) -> None:
        ran.append(what)
        for name, data in results.items():
            (tmp_path / "act/build/out" / name).write_bytes(data)

    monkeypatch.setattr(bytecode, "check", check)
    monkeypatch.setattr(bytecode, "find_sandbox", lambda _: None)
    tree = write_tree(store.blobs, [data_entry(f"{SITE}/{n}.py", b"x") for n in "abc"])
    root: dict[str, JSON] = {"trees": 0, "wheels": [], "install": asdict(INSTALL)}
    params: dict[str, JSON] = {
        "kind": "tree", "filename": "demo", "install": asdict(INSTALL), "checked": True,
        "root": root,
    }  # fmt: skip
    reporter = Notes()
    (tmp_path / "act").mkdir()
    out = BYTECODE.run(Context(store, {"source": tree}, params, reporter, tmp_path / "act"))
    entries = read_tree(store.blobs.path(out["out"].sha256))
    return entries, store.blobs.read(out["skipped"].sha256), reporter.notes, ran


def test_the_tree_holds_only_bytecode(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {"0": b"A", "1": b"B", "2": b"C"}
    entries, skipped, notes, ran = run(store, tmp_path, monkeypatch, results)
    files = {e.path: e.open().read() for e in entries if e.kind == "file"}
    assert files == {f"{SITE}/__pycache__/{n}.cpython-311.pyc": n.upper().encode() for n in "abc"}
    assert (skipped, notes, ran) == (b"{}", [], ["compiling demo"])


def test_skipped_files_are_said_and_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {"0": b"A", "1.error": b"SyntaxError in line 1: no"}
    entries, skipped, notes, _ = run(store, tmp_path, monkeypatch, results)
    assert sum(entry.kind == "file" for entry in entries) == 1
    assert (
        skipped
        == (
            f'{{"{SITE}/b.py":"SyntaxError in line 1: no","{SITE}/c.py":"the compiler crashed"}}'
        ).encode()
    )
    assert len(notes) == 1
    assert "demo: 2 of 3 files do not compile" in notes[0]
    assert f"/{SITE}/b.py: SyntaxError in line 1: no" in notes[0]


def test_a_source_that_crashes_the_compiler_takes_nothing_else_with_it(tmp_path: Path) -> None:
    files = {f"/m{n}.py": b"x = %d\n" % n for n in range(150)}
    whole = compiled(tmp_path / "whole", files, UNCHECKED)
    files["/m70.py"] = b"CRASH = 1\n"
    out = compiled(tmp_path / "crash", files, UNCHECKED, crash=b"CRASH")
    assert "70" not in out
    assert out == {name: data for name, data in whole.items() if name != "70"}


def test_the_number_of_jobs_changes_nothing(tmp_path: Path) -> None:
    files = {f"/m{n}.py": b"def f(a, b='%d'): return (a, b, 'x' * 3)\n" % n for n in range(150)}
    one = compiled(tmp_path / "one", files, UNCHECKED, jobs=1)
    assert one == compiled(tmp_path / "four", files, UNCHECKED, jobs=4)
    assert len(one) == 150
