"""Whole trees against git: what its own diffs of them do, we do too, modes and links included.

And on a tree that is a little different: where we accept, git accepts, with the same result.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kiln.errors import KilnError, Problems
from kiln.pins.patch import PatchFile
from kiln.source.apply import apply_series
from kiln.source.diff import EXECUTABLE, FILE, LINK
from tests.helpers.git_apply import commit, git_apply, git_diff
from tests.property.test_patch_property import TEXTS, edited

Tree = Mapping[str, tuple[bytes, int]]  # path -> content (of a link its target), git's mode
FOLDERS = ("vllm", "vllm/a")
NAMES = ("vllm/x.txt", "vllm/a b.txt", "vllm/a/x.txt", "vllm/a/\u00e9.txt", "vllm/a/z.txt")
KEPT = {"vllm/__init__.py": (b"", FILE), "vllm/a/__init__.py": (b"x = 1\n", FILE)}
MODES = st.sampled_from([FILE, FILE, FILE, EXECUTABLE])
WHAT = st.sampled_from(["edit", "edit", "move", "copy", "delete", "new", "mode", "link"])


def pristine() -> st.SearchStrategy[Tree]:
    files = st.dictionaries(st.sampled_from(NAMES), st.tuples(TEXTS, MODES), max_size=4)
    return files.map(lambda found: {**KEPT, **found})


@st.composite
def changed(draw: st.DrawFn, tree: Tree) -> Tree:
    """The tree after files were edited, moved, copied, deleted, added, linked, made to run."""
    after = dict(tree)
    for _ in range(draw(st.integers(1, 3))):
        paths = sorted(path for path in after if path not in KEPT)
        what = draw(
            st.sampled_from(["edit", "edit", "move", "copy", "delete", "new", "mode", "link"])
        )
        target = draw(st.sampled_from(NAMES))
        if what in ("new", "link"):
            if target in tree or target in after:
                continue
            data = draw(TEXTS) if what == "new" else b"__init__.py"
            after[target] = (data, draw(MODES) if what == "new" else LINK)
            continue
        if not paths:
            continue
        path = draw(st.sampled_from(paths))
        data, mode = after[path]
        if what == "edit" and mode != LINK:
            after[path] = (draw(edited(data)), mode)
        elif what == "mode" and mode != LINK:
            after[path] = (data, draw(MODES))
        elif what == "delete":
            del after[path]
        elif what in ("move", "copy") and target not in tree and target not in after:
            after[target] = (draw(st.sampled_from([data, data + b"more\n"])), mode)
            if mode == LINK:
                after[target] = (data, mode)
            if what == "move":
                del after[path]
    return after


def write(folder: Path, tree: Tree) -> None:
    for old in sorted(folder.glob("vllm/**/*"), reverse=True):
        if old.is_symlink() or old.is_file():
            old.unlink()
    for path, (data, mode) in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == LINK:
            target.symlink_to(data.decode())
        else:
            target.write_bytes(data)
            target.chmod(mode & 0o777)


def read(folder: Path) -> Tree:
    found = {}
    for path in folder.glob("vllm/**/*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = (str(path.readlink()).encode(), LINK)
        elif path.is_file():
            runs = path.stat().st_mode & stat.S_IXUSR
            found[name] = (path.read_bytes(), EXECUTABLE if runs else FILE)
    return found


def ours(tree: Tree, patch: bytes) -> Tree | KilnError:
    try:
        applied = apply_series(
            lambda path: tree[path][0] if path in tree else None,
            tree.keys(),
            [PatchFile("p", patch)],
            lambda path: tree[path][1],
        )
    except KilnError as error:
        return error
    after = dict(tree)
    for path, data in applied.files.items():
        after.pop(path, None)
        if data is not None:
            after[path] = (data, applied.modes[path])
    return after


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from(["-U3", "-U1"]), st.booleans())
def test_gits_diff_of_two_trees(data: st.DataObject, context: str, copies: bool) -> None:
    old = data.draw(pristine())
    new = data.draw(changed(old))
    assume(old != new)
    options = [context, "-M", *(["-C", "--find-copies-harder"] if copies else [])]
    other = data.draw(changed(old))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tree in (old, new):
            write(folder, tree)
            commit(folder)
        patch = git_diff(folder, *options)
        done = ours(old, patch)
        if isinstance(done, KilnError):  # the one thing that we refuse
            found = done.errors if isinstance(done, Problems) else (done,)
            assert {error.code for error in found} == {"patch.line-endings"}
        else:
            assert done == new
        write(folder, other)
        result = ours(other, patch) if not any(mode == LINK for _, mode in other.values()) else None
        if isinstance(result, dict):
            assert git_apply(folder, patch)
            assert read(folder) == result
