"""The step that patches a wheel: what comes out, and what it checks against the lock."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from kiln.canonical import JSON, Digest
from kiln.errors import KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import PATCH
from kiln.lock.model import LockedPatch
from kiln.pins.patch import PatchFile
from kiln.progress import Reporter, Silent
from kiln.source.entry import Entry
from kiln.source.patch import patch_wheel
from kiln.source.tree import read_tree
from kiln.source.wheel import Wheel
from kiln.store import Store
from tests.helpers.server import Notes
from tests.helpers.small import ROOT, make_wheel

SITE = "usr/lib/python3/dist-packages"
INSTALL = {"site": SITE, "scripts": "usr/bin", "data": "usr", "interpreter": "/usr/bin/python3"}
FILES = {"vllm/__init__.py": "", "vllm/a.py": "a = 1\n", "vllm/b.txt": "b\n"}
CHANGE = b"--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
AGAIN = b"--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a = 2\n+a = 3\n"
ADD = b"--- /dev/null\n+++ b/vllm/d.py\n@@ -0,0 +1 @@\n+d = 1\n"
DELETE = b"--- a/vllm/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"
FILE = "vllm-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, "vllm", "1.0", FILES)


def series(*patches: bytes) -> list[PatchFile]:
    return [PatchFile(f"p{n}", data) for n, data in enumerate(patches)]


def locked(wheel: Path, *patches: bytes) -> tuple[LockedPatch, ...]:
    return patch_wheel(Wheel(wheel, FILE), series(*patches)).patches


def run(
    store: Store,
    wheel: Path,
    lock: tuple[LockedPatch, ...],
    *patches: bytes,
    bytecode: str = "",
    reporter: Reporter | None = None,
) -> Mapping[str, Digest]:
    inputs = {f"patch:p{n}": store.blobs.put(data) for n, data in enumerate(patches)}
    inputs["wheel"] = store.blobs.put_file(wheel)
    plain = [msgspec.to_builtins(patch) for patch in lock]
    params: dict[str, JSON] = {"filename": FILE, "install": INSTALL, "series": plain}
    params |= {"bytecode": bytecode} if bytecode else {}
    return PATCH.run(Context(store, inputs, params, reporter or Silent(), store.blobs.tmp))


def tree_of(store: Store, wheel: Path, *patches: bytes, bytecode: str = "") -> dict[str, Entry]:
    """What the step makes of the patches, by path in site-packages; folders left out."""
    out = run(store, wheel, locked(wheel, *patches), *patches, bytecode=bytecode)["out"]
    entries = read_tree(store.blobs.path(out.sha256))
    return {e.path.removeprefix(f"{SITE}/"): e for e in entries if e.kind != "dir"}


def record(tree: Mapping[str, Entry]) -> dict[str, list[str]]:
    text = tree["vllm-1.0.dist-info/RECORD"].open().read().decode()
    return {row[0]: row[1:] for row in csv.reader(text.splitlines())}


def codes(store: Store, wheel: Path, lock: tuple[LockedPatch, ...], *patches: bytes) -> list[str]:
    with pytest.raises(KilnError) as caught:
        run(store, wheel, lock, *patches)
    error = caught.value
    return [e.code for e in error.errors] if isinstance(error, Problems) else [error.code]


def test_changed_and_new_files_and_record_come_out(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE, ADD, AGAIN)
    out = run(store, wheel, lock, CHANGE, ADD, AGAIN)
    assert out.keys() == {"out"}
    tree = {e.path: e for e in read_tree(store.blobs.path(out["out"].sha256)) if e.kind == "file"}
    record = f"{SITE}/vllm-1.0.dist-info/RECORD"
    assert tree.keys() == {f"{SITE}/vllm/a.py", f"{SITE}/vllm/d.py", record}
    content = {path: entry.open().read() for path, entry in tree.items()}
    assert content[f"{SITE}/vllm/a.py"] == b"a = 3\n"
    assert all(entry.mode == 0o644 for entry in tree.values())

    rows = {row[0]: row[1:] for row in csv.reader(content[record].decode().splitlines())}
    expected = {"vllm/a.py": b"a = 3\n", "vllm/b.txt": b"b\n", "vllm/d.py": b"d = 1\n"}
    for path, data in expected.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows[path] == [f"sha256={sha}", str(len(data))]


def test_the_same_series_gives_the_same_tree(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE)
    assert run(store, wheel, lock, CHANGE) == run(store, wheel, lock, CHANGE)


def test_sources_that_are_not_the_locked_ones(store: Store, wheel: Path, tmp_path: Path) -> None:
    lock = locked(wheel, CHANGE, ADD)
    other = make_wheel(tmp_path, "vllm", "1.0", {**FILES, "vllm/a.py": "a = 1\n# more\n"})
    assert codes(store, other, lock, CHANGE, ADD) == ["patch.pre-image"]
    both = make_wheel(tmp_path, "vllm", "1.0", {"vllm/x.py": "", "vllm/d.py": "d = 0\n"})
    assert codes(store, both, lock, CHANGE, ADD) == ["patch.pre-image", "patch.pre-image"]


def test_a_patch_that_is_not_the_locked_one(store: Store, wheel: Path) -> None:
    lock = locked(wheel, CHANGE)
    assert codes(store, wheel, lock, CHANGE.replace(b"= 2", b"= 9")) == ["patch.file-changed"]


def test_results_that_are_not_the_locked_ones(store: Store, wheel: Path) -> None:
    (patch,) = locked(wheel, CHANGE)
    (file,) = patch.files

    def claim(**changes: str) -> tuple[LockedPatch, ...]:
        claimed = msgspec.structs.replace(file, **changes)
        return (msgspec.structs.replace(patch, files=(claimed,)),)

    assert codes(store, wheel, claim(post="0" * 64), CHANGE) == ["patch.post-image"]
    assert codes(store, wheel, claim(post=""), CHANGE) == ["patch.post-image"]
    assert codes(store, wheel, claim(mode="100755"), CHANGE) == ["patch.post-image"]
    none = (msgspec.structs.replace(patch, files=()),)
    with pytest.raises(KilnError) as caught:
        run(store, wheel, none, CHANGE)
    assert caught.value.code == "patch.post-image"
    assert "expected no change, got sha256" in caught.value.why


# ---- what is deleted, renamed, linked or may be run

RENAME = (
    b"diff --git a/vllm/a.py b/vllm/c.py\nsimilarity index 100%\n"
    b"rename from vllm/a.py\nrename to vllm/c.py\n"
)
MODE = b"diff --git a/vllm/b.txt b/vllm/b.txt\nold mode 100644\nnew mode 100755\n"
LINK = (
    b"diff --git a/vllm/l.py b/vllm/l.py\nnew file mode 120000\n--- /dev/null\n+++ b/vllm/l.py\n"
    b"@@ -0,0 +1 @@\n+a.py\n\\ No newline at end of file\n"
)
INFO = "vllm-1.0.dist-info/RECORD"


def test_a_deleted_file_is_hidden_with_its_bytecode_and_leaves_record(
    store: Store, wheel: Path
) -> None:
    tree = tree_of(store, wheel, DELETE)
    assert tree.keys() == {"vllm/.wh.a.py", INFO}
    assert tree["vllm/.wh.a.py"].size == 0
    assert "vllm/a.py" not in record(tree)
    assert "vllm/b.txt" in record(tree)
    tree = tree_of(store, wheel, DELETE, bytecode="cpython-311")
    assert tree.keys() == {"vllm/.wh.a.py", "vllm/__pycache__/.wh.a.cpython-311.pyc", INFO}


def test_a_rename_is_both(store: Store, wheel: Path) -> None:
    tree = tree_of(store, wheel, RENAME, bytecode="cpython-311")
    assert tree.keys() == {
        "vllm/.wh.a.py", "vllm/__pycache__/.wh.a.cpython-311.pyc", "vllm/c.py", INFO,
    }  # fmt: skip
    assert tree["vllm/c.py"].open().read() == b"a = 1\n"
    assert record(tree).keys() >= {"vllm/c.py", "vllm/b.txt", "vllm/__init__.py"}
    assert "vllm/a.py" not in record(tree)


def test_a_folder_of_which_nothing_is_left_is_hidden_whole(store: Store, tmp_path: Path) -> None:
    """Else it could still be imported, as a namespace package."""
    pyc = "vllm/old/sub/__pycache__/a.cpython-310.pyc"
    files: dict[str, str | bytes] = {**FILES, "vllm/old/sub/a.py": "a = 1\n", pyc: b"x"}
    wheel = make_wheel(tmp_path, "vllm", "1.0", files)
    gone = DELETE.replace(b"vllm/a.py", b"vllm/old/sub/a.py")
    tree = tree_of(store, wheel, gone, bytecode="cpython-311")
    assert tree.keys() == {"vllm/.wh.old", INFO}
    assert record(tree).keys() & {pyc, "vllm/old/sub/a.py"} == set()
    wheel = make_wheel(tmp_path, "vllm", "1.0", {**files, "vllm/old/b.txt": "b"})
    assert tree_of(store, wheel, gone).keys() == {"vllm/old/.wh.sub", INFO}


def test_a_mode_reaches_the_entry(store: Store, wheel: Path) -> None:
    tree = tree_of(store, wheel, MODE)
    assert tree.keys() == {"vllm/b.txt", INFO}
    assert tree["vllm/b.txt"].mode == 0o755
    assert tree["vllm/b.txt"].open().read() == b"b\n"


def test_a_link_is_one_and_record_tells_of_what_is_read_through_it(
    store: Store, wheel: Path
) -> None:
    tree = tree_of(store, wheel, CHANGE, LINK)
    assert (tree["vllm/l.py"].kind, tree["vllm/l.py"].target) == ("symlink", "a.py")
    assert record(tree)["vllm/l.py"] == record(tree)["vllm/a.py"]
    tree = tree_of(store, wheel, LINK)
    assert record(tree)["vllm/l.py"] == record(tree)["vllm/a.py"]
    replaced = LINK.replace(b"l.py", b"b.txt").replace(b"+a.py", b"+__init__.py")
    gone = DELETE.replace(b"a.py", b"b.txt").replace(b"a = 1", b"b")
    tree = tree_of(store, wheel, gone, replaced)
    assert tree.keys() == {"vllm/b.txt", INFO}


def test_bytecode_of_a_module_that_becomes_a_link_goes(store: Store, wheel: Path) -> None:
    to = LINK.replace(b"l.py", b"a.py").replace(b"+a.py", b"+__init__.py")
    tree = tree_of(store, wheel, DELETE, to, bytecode="cpython-311")
    assert tree.keys() == {"vllm/a.py", "vllm/__pycache__/.wh.a.cpython-311.pyc", INFO}


def test_p8_the_same_tree_under_every_umask(store: Store, wheel: Path) -> None:
    trees = set()
    for mask in (0o022, 0o077):
        old = os.umask(mask)
        try:
            lock = locked(wheel, RENAME, MODE, ADD)
            trees.add(run(store, wheel, lock, RENAME, MODE, ADD)["out"])
        finally:
            os.umask(old)
    assert len(trees) == 1


def test_what_is_left_out_is_said_each_time(store: Store, wheel: Path) -> None:
    docs = CHANGE.replace(b"vllm/a.py", b"docs/a.py")
    patch = PatchFile("p0", docs + CHANGE, "", (), ("docs/**",))
    lock = patch_wheel(Wheel(wheel, FILE), [patch]).patches
    assert lock[0].left_out == ("docs/a.py",)
    notes = Notes()
    run(store, wheel, lock, patch.data, reporter=notes)
    assert notes.lines == ["patch p0: left out: docs/a.py"]
    silent = (msgspec.structs.replace(lock[0], left_out=()),)
    assert codes(store, wheel, silent, patch.data) == ["patch.outside"]


# ---- what the machine around it may not change


def test_p1_inside_of_another_git_repository(
    store: Store, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `git apply` says nothing, changes nothing and ends with 0."""
    inner = tmp_path / "outer/build/src"
    (inner / "vllm").mkdir(parents=True)
    (inner / "vllm/a.py").write_text("a = 1\n")
    change = b"diff --git a/vllm/a.py b/vllm/a.py\nindex 1111111..2222222 100644\n" + CHANGE
    (inner / "p.diff").write_bytes(change)
    monkeypatch.chdir(inner)
    for command in (["init", "-q", "../.."], ["apply", "p.diff"]):
        subprocess.run(["git", *command], check=True, env={"PATH": os.environ["PATH"]})
    assert (inner / "vllm/a.py").read_text() == "a = 1\n"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "outer/.git"))
    tree = tree_of(store, wheel, change)
    assert tree["vllm/a.py"].open().read() == b"a = 2\n"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_p13_in_every_locale(tmp_path: Path, locale: str) -> None:
    patch = b"--- a/vllm/b.txt\n+++ b/vllm/b.txt\n@@ -1,2 +1,2 @@\n caf\xe9\n-b\n+\xff\n"
    wheel = make_wheel(tmp_path, "vllm", "1.0", {**FILES, "vllm/b.txt": b"caf\xe9\nb\n"})
    (tmp_path / "p.diff").write_bytes(patch)
    program = (
        "import sys; from pathlib import Path\n"
        "from kiln.source.patch import PatchFile, patch_wheel\n"
        "from kiln.source.wheel import Wheel\n"
        "wheel = Wheel(Path(sys.argv[1]), Path(sys.argv[1]).name)\n"
        "series = [PatchFile('p', Path(sys.argv[2]).read_bytes())]\n"
        "sys.stdout.buffer.write(patch_wheel(wheel, series).files['vllm/b.txt'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", program, str(wheel), str(tmp_path / "p.diff")],
        env={"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"caf\xe9\n\xff\n"


def test_the_key_follows_the_order_of_the_series(wheel: Path) -> None:
    from kiln.graph.action import Node

    keys = set()
    for order in ([CHANGE, ADD], [ADD, CHANGE]):
        plain = [msgspec.to_builtins(patch) for patch in locked(wheel, *order)]
        node = Node("patch", PATCH, {}, {"filename": FILE, "install": INSTALL, "series": plain})
        keys.add(node.key({}))
    assert len(keys) == 2
