"""Which bubblewrap and which container runtime: the host's, else the closure's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kiln.compile import tools
from kiln.compile.root import TreePart
from kiln.compile.tools import find_runtime, find_tool, install_tools
from kiln.errors import CannotHere
from kiln.progress import Silent
from kiln.source.entry import Entry, data_entry
from kiln.source.tree import write_tree
from kiln.store import Store


class Notes(Silent):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the host's programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(tools, "SYSTEM", ())
    return folder


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def install(store: Store, names: Iterable[str]) -> None:
    """A root as Debian's packages make it: the link to the loader is absolute."""
    loader = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    entries = [
        *(data_entry(f"usr/bin/{name}", b"program", 0o755) for name in names),
        data_entry(f"usr/{loader}", b"loader", 0o755),
        Entry("usr/lib64/ld-linux-x86-64.so.2", "symlink", 0o777, target=f"/{loader}"),
    ]
    install_tools(store, [TreePart(write_tree(store.blobs, entries))])


def test_crun_of_the_host_comes_first(store: Store, host: Path) -> None:
    program(host, "runc")
    crun = program(host, "crun")
    install(store, ["crun"])
    reporter = Notes()
    runtime = find_runtime(store, reporter)
    assert (runtime.name, runtime.argv, runtime.origin) == ("crun", (crun,), "host")
    assert reporter.notes == [f"runtime: crun from the host ({crun})"]


def test_runc_of_the_host_comes_before_the_closure(store: Store, host: Path) -> None:
    runc = program(host, "runc")
    install(store, ["crun"])
    assert find_runtime(store, Silent()).argv == (runc,)


def test_the_closures_tool_starts_through_its_own_loader(store: Store) -> None:
    install(store, ["crun", "bwrap"])
    root = (store.roots / "tools").resolve()
    tool = find_tool(store, ["bwrap"])
    assert tool is not None
    assert tool.origin == "closure"
    assert tool.argv == (
        f"{root}/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "--library-path",
        f"{root}/usr/lib/x86_64-linux-gnu:{root}/usr/lib",
        f"{root}/usr/bin/bwrap",
    )
    # The host's loader with the closure's libc aborts wherever the two differ.
    assert Path(tool.argv[0]).resolve().is_relative_to(root)


def test_a_newer_closure_replaces_the_older(store: Store) -> None:
    install(store, ["crun"])
    install(store, ["bwrap"])
    assert find_tool(store, ["crun"]) is None
    assert find_tool(store, ["bwrap"]) is not None
    assert list(store.blobs.tmp.iterdir()) == []


def test_without_any_the_refusal_says_what_to_install(store: Store) -> None:
    with pytest.raises(CannotHere) as error:
        find_runtime(store, Silent())
    assert error.value.code == "runtime.none"
    assert "crun" in error.value.fix
