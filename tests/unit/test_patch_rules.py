"""What patch.yaml says to whoever applies it: what is left out, and when it is retired."""

from __future__ import annotations

import pytest

from kiln.errors import BadInput, JudgedBad
from kiln.pins.patch import PatchFile, RetireWhen
from kiln.source.leave_out import takes
from kiln.source.retire import Retired, retired
from tests.helpers.patching import (
    HEADER,
    HUNK,
    TREE,
    apply,
    codes,
    deletion,
    errors,
    new_file,
    rename,
)

M = "vllm/config/m.py"
BINARY = b"""diff --git a/docs/a.png b/docs/a.png
new file mode 100644
index 0000000..1111111
GIT binary patch
literal 3
Kcmew$00000

literal 0
HcmV?d00001

"""
DIFFER = b"""diff --git a/docs/b.png b/docs/b.png
index 1..2 100644
Binary files a/docs/b.png and b/docs/b.png differ
"""
TEST = HEADER.replace(b"vllm/config", b"tests") + HUNK


def patch(data: bytes, *leave_out: str, markers: tuple[RetireWhen, ...] = ()) -> PatchFile:
    return PatchFile("p1", data, "p1.patch", (), leave_out, markers)


# ---- leave_out


def test_what_the_globs_take_is_left_out_and_named() -> None:
    """As in the diff of a pull request: code, tests, documents, pictures, submodules."""
    module = new_file("docs/sub", mode=b"160000")
    data = BINARY + DIFFER + module + TEST + HEADER + HUNK + new_file("tests/new_test.py")
    applied = apply(TREE, patch(data, "tests/*.py", "docs/**"))
    assert applied.files.keys() == {M}
    assert applied.patches[0].left_out == (
        "docs/a.png", "docs/b.png", "docs/sub", "tests/m.py", "tests/new_test.py",
    )  # fmt: skip
    assert [file.path for file in applied.patches[0].files] == [M]


def test_what_no_glob_takes_is_an_error() -> None:
    assert codes(TREE, patch(TEST + HEADER + HUNK, "docs/**")) == ["patch.outside"]
    (error,) = errors(TREE, patch(TEST + HEADER + HUNK))
    assert error.code == "patch.outside"
    assert "leave_out" in error.fix
    assert codes(TREE, patch(BINARY + HEADER + HUNK)) == ["patch.outside"]
    assert codes(TREE, patch(new_file("../docs/x"), "**")) == ["patch.outside"]


def test_a_glob_that_takes_nothing_is_an_error() -> None:
    (error,) = errors(TREE, patch(TEST + HEADER + HUNK, "tests/**", "test/**"))
    assert (error.code, isinstance(error, BadInput)) == ("patch.leave-out-unused", True)
    assert "'test/**'" in error.what


def test_no_glob_hides_what_belongs_to_the_wheel() -> None:
    assert codes(TREE, patch(HEADER + HUNK, "vllm/**")) == [
        "patch.leave-out-hides", "patch.no-change",
    ]  # fmt: skip
    hides = ["patch.leave-out-hides"]
    assert codes(TREE, patch(HEADER + HUNK + new_file("vllm/new.txt"), "**/*.txt")) == hides
    # A file that this version does not have may have moved: that is for the reader to know.
    other = HEADER.replace(b"config/m.py", b"old/m.py") + HUNK
    assert codes(TREE, patch(HEADER + HUNK + other, "vllm/old/*")) == hides
    tree = {**TREE, "vllm-1.0.dist-info/METADATA": b"x\n"}
    metadata = HEADER.replace(b"vllm/config/m.py", b"vllm-1.0.dist-info/METADATA") + HUNK
    assert codes(tree, patch(HEADER + HUNK + metadata, "vllm-*/**")) == hides
    out = rename(M, "tests/m.py")
    assert codes(TREE, patch(out + new_file("vllm/x.py"), "tests/**")) == ["patch.outside"]
    assert codes(TREE, patch(out + new_file("vllm/x.py"), "tests/**", "vllm/config/*")) == hides


def test_a_readme_of_the_package_that_no_wheel_has() -> None:
    readme = HEADER.replace(b"config/m.py", b"config/README.md") + HUNK
    applied = apply(TREE, patch(HEADER + HUNK + readme, "**/*.md"))
    assert applied.patches[0].left_out == ("vllm/config/README.md",)


def test_a_patch_of_which_nothing_is_left() -> None:
    assert codes(TREE, patch(TEST, "tests/**")) == ["patch.no-change"]


def test_what_is_left_out_is_read_strictly_all_the_same() -> None:
    short = TEST.replace(b"-8,5 +8,5", b"-8,4 +8,4")
    assert codes(TREE, patch(short + HEADER + HUNK, "tests/**")) == ["patch.corrupt"]
    lines = b"@@ -1,3 +1,3 @@\n x\n--- a/vllm/y\n+++ b/vllm/y\n-- \n+- \n"
    looks = b"--- a/tests/x\n+++ b/tests/x\n" + lines
    assert apply(TREE, patch(looks + HEADER + HUNK, "tests/*")).files.keys() == {M}


@pytest.mark.parametrize(
    ("glob", "path", "taken"),
    [
        ("tests/**", "tests/a/b.py", True),
        ("tests/**", "tests", False),
        ("tests/*", "tests/a/b.py", False),
        ("**/test_*.py", "test_a.py", True),
        ("**/test_*.py", "x/y/test_a.py", True),
        ("**/test_*.py", "x/mytest_a.py", False),
        ("docs/?.md", "docs/a.md", True),
        ("docs/?.md", "docs//.md", False),
        ("docs/a.md", "docs/aXmd", False),
        ("docs/[a].md", "docs/[a].md", True),
        ("docs/[a].md", "docs/a.md", False),
        ("a/**/b", "a/b", True),
        ("**", "a/b", True),
    ],
)
def test_globs(glob: str, path: str, taken: bool) -> None:
    assert takes(glob, path) == taken


# ---- retire_when


FOUND = RetireWhen(M, "line7 = 7\n")
BY = RetireWhen(M, "line12 = 12", superseded_by="vllm's own")


def test_a_retired_patch_in_the_series() -> None:
    (error,) = errors(TREE, patch(HEADER + HUNK, markers=(FOUND,)))
    assert (error.code, isinstance(error, JudgedBad)) == ("patch.retired", True)
    assert f"{M}:7 " in error.why
    assert "upstream has it" in error.what
    both = errors(TREE, patch(HEADER + HUNK, markers=(FOUND, BY)), b"nonsense")
    assert [e.code for e in both] == ["patch.retired", "patch.retired", "patch.corrupt"]
    assert "superseded by vllm's own" in both[1].what


def test_a_marker_is_looked_for_in_the_pristine_source_only() -> None:
    """Not in what an earlier patch makes of it; and a file that is gone holds none."""
    marker = RetireWhen("vllm/new.py", "x = 1")
    assert apply(TREE, new_file("vllm/new.py"), patch(HEADER + HUNK, markers=(marker,))).files
    assert retired(patch(b"", markers=(marker,)), TREE.get) == []
    assert retired(patch(b"", markers=(FOUND, marker, BY)), TREE.get) == [
        Retired(FOUND, 7), Retired(BY, 12),
    ]  # fmt: skip


def test_a_marker_that_the_patch_itself_adds() -> None:
    own = RetireWhen(M, "line10 = 'ten'\nline11")
    (error,) = errors(TREE, patch(HEADER + HUNK, markers=(own,)))
    assert (error.code, error.where) == ("patch.marker-in-own", "p1.patch:3")
    elsewhere = RetireWhen("vllm/other.py", "x = 1")
    assert codes(TREE, patch(new_file("vllm/new.py"), markers=(elsewhere,))) == [
        "patch.marker-in-own"
    ]
    removed = RetireWhen("vllm/other.py", "line10 = 10")
    assert apply(TREE, patch(HEADER + HUNK, markers=(removed,))).files


# ---- left-overs


@pytest.mark.parametrize("name", ["m.py.rej", "m.py.orig", "m.py~"])
def test_p9_left_overs_in_the_source(name: str) -> None:
    tree = {**TREE, f"vllm/config/{name}": b"x\n"}
    (error,) = errors(tree, HEADER + HUNK)
    assert (error.code, error.where) == ("source.left-over", f"vllm/config/{name}")
    assert codes(tree, deletion(f"vllm/config/{name}", b"x\n"))[-1] == "patch.left-over"
