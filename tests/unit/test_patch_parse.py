"""Patches that are no good in themselves: corrupt, odd, or reaching where they may not."""

from __future__ import annotations

import pytest

from kiln.errors import BadInput
from tests.helpers.patching import GIT, HEADER, HUNK, TREE, codes, errors, new_file, rename

# ---- patches that are no good in themselves

CORRUPT = {
    "old count too small": HUNK.replace(b"-8,5", b"-8,3"),
    "old count too large": HUNK.replace(b"-8,5", b"-8,6"),
    "both counts too small": HUNK.replace(b"-8,5 +8,5", b"-8,4 +8,4"),
    "both counts too large": HUNK.replace(b"-8,5 +8,5", b"-8,6 +8,6"),
    "new start shifted": HUNK.replace(b"+8,5", b"+9,5"),
    "line 0": HUNK.replace(b"-8,5 +8,5", b"-0,5 +0,5"),
    "no numbers": HUNK.replace(b"-8,5", b"-x,5"),
    "unknown line": HUNK.replace(b"\n line11", b"\n?line11"),
    "cut off": HUNK[:-20],
    "cut within the last line": HUNK[:-1],
    "only context": HUNK.replace(b"-line10 = 10\n+line10 = 'ten'\n", b" line10 = 10\n"),
    "text behind": HUNK + b"and so on\n",
    "hunk behind a signature": HUNK + b"-- \n2.39\n" + HUNK,
    "overlap": HUNK + HUNK.replace(b"-8,5 +8,5", b"-9,5 +9,5"),
    "marker in the middle": HUNK.replace(b"9 = 9\n", b"9 = 9\n\\ No newline at end of file\n"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_p15_corrupt(name: str) -> None:
    (error,) = errors(TREE, HEADER + CORRUPT[name])
    assert error.code == "patch.corrupt"
    assert isinstance(error, BadInput)


def test_p15_says_the_line() -> None:
    (error,) = errors(TREE, HEADER + HUNK.replace(b"-8,5 +8,5", b"-8,4 +8,4"))
    assert error.where == "p1.patch:9"


REFUSED = {
    "nothing at all": (b"", "patch.corrupt"),
    "prose": (b"Please apply this.\n", "patch.corrupt"),
    "hunk without header": (HUNK, "patch.corrupt"),
    "header without hunk": (HEADER, "patch.corrupt"),
    "second name missing": (GIT + b"--- a/vllm/config/m.py\n" + HUNK, "patch.corrupt"),
    "two different names": (GIT + HEADER.replace(b"/m.py", b"/n.py") + HUNK, "patch.corrupt"),
    "old and new differ": (HEADER.replace(b"b/vllm/config/m", b"b/vllm/m") + HUNK, "patch.corrupt"),
    "new, with old lines": (GIT + b"new file mode 100644\n" + HEADER + HUNK, "patch.corrupt"),
    "no prefix": (HEADER.replace(b"a/", b"").replace(b"b/", b"") + HUNK, "patch.prefix"),
    "binary": (GIT + b"index 1..2 100644\nGIT binary patch\nliteral 3\nabc\n", "patch.binary"),
    "binary, plain": (GIT + b"Binary files a/vllm/x and b/vllm/x differ\n", "patch.binary"),
    "odd mode": (new_file("vllm/x.py", mode=b"100664"), "patch.mode"),
    "a folder's mode": (new_file("vllm/x.py", mode=b"040000"), "patch.mode"),
    "no mode": (GIT + b"old mode 100644\nnew mode \n", "patch.mode"),
    "the same mode": (GIT + b"old mode 100644\nnew mode 100644\n", "patch.mode"),
    "a file becomes a link": (GIT + b"old mode 100644\nnew mode 120000\n", "patch.mode"),
    "one mode only": (GIT + b"new mode 100755\n", "patch.corrupt"),
    "new, with an old mode": (
        GIT + b"old mode 100644\nnew mode 100755\nnew file mode 100644\n",
        "patch.corrupt",
    ),
    "link without a target": (GIT + b"new file mode 120000\n", "patch.corrupt"),
    "submodule": (new_file("vllm/x", mode=b"160000"), "patch.not-a-file"),
    "changed submodule": (GIT + b"index 1..2 160000\n" + HEADER + HUNK, "patch.not-a-file"),
    "twice": (HEADER + HUNK + HEADER + HUNK, "patch.twice"),
    "twice, by a rename": (HEADER + HUNK + rename("vllm/config/m.py", "vllm/n.py"), "patch.twice"),
    "rename to one place twice": (
        rename("vllm/config/m.py", "vllm/n.py") + new_file("vllm/n.py"),
        "patch.twice",
    ),
    "rename with one end": (
        GIT.replace(b"b/vllm/config/m.py", b"b/vllm/n.py") + b"rename from vllm/config/m.py\n",
        "patch.corrupt",
    ),
    "rename of another file": (
        rename("vllm/config/m.py", "vllm/n.py").replace(b"to vllm/n", b"to vllm/o"),
        "patch.corrupt",
    ),
    "rename to itself": (rename("vllm/config/m.py", "vllm/config/m.py"), "patch.corrupt"),
    "rename and copy": (
        rename("vllm/config/m.py", "vllm/n.py")
        + b"copy from vllm/config/m.py\ncopy to vllm/n.py\n",
        "patch.corrupt",
    ),
    "rename of a new file": (
        rename("vllm/config/m.py", "vllm/n.py") + b"new file mode 100644\n",
        "patch.corrupt",
    ),
    "rename that lost its hunks": (
        rename("vllm/config/m.py", "vllm/n.py", likeness=90),
        "patch.corrupt",
    ),
    "rename out of the package": (rename("vllm/config/m.py", "tests/m.py"), "patch.outside"),
    "rename into the package": (rename("tests/m.py", "vllm/m.py"), "patch.outside"),
    "change that lost its hunks": (GIT + b"index 1..2 100644\n", "patch.corrupt"),
    "mode that lost its hunks": (
        GIT + b"old mode 100644\nnew mode 100755\nindex 1..2\n",
        "patch.corrupt",
    ),
    "new file that lost its lines": (
        new_file("vllm/n.py").partition(b"---")[0],
        "patch.corrupt",
    ),
    "left-over of patch": (new_file("vllm/config/m.py.rej"), "patch.left-over"),
    "left-over of a merge": (new_file("vllm/config/m.py.orig"), "patch.left-over"),
    "left-over of an editor": (new_file("vllm/config/m.py~"), "patch.left-over"),
    "new file, named as an old one": (
        GIT + b"new file mode 100644\n" + HEADER + b"@@ -0,0 +1 @@\n+x = 1\n",
        "patch.corrupt",
    ),
    "new file from old lines": (
        b"--- /dev/null\n+++ b/vllm/n.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        "patch.corrupt",
    ),
    "deleted file with lines left": (
        b"--- a/vllm/config/m.py\n+++ /dev/null\n@@ -1 +1 @@\n-line1 = 1\n+x = 2\n",
        "patch.corrupt",
    ),
    "binary before": (
        b"Binary files a/vllm/x and b/vllm/x differ\n" + HEADER + HUNK,
        "patch.corrupt",
    ),
    "only in": (b"Only in b/vllm: x.py\n" + HEADER + HUNK, "patch.corrupt"),
    "open quote": (HEADER.replace(b"a/vllm", b'"a/vllm') + HUNK, "patch.corrupt"),
    "bad escape": (HEADER.replace(b"a/vllm/config/m.py", b'"a/vllm/\\q"') + HUNK, "patch.corrupt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    patch, code = REFUSED[name]
    assert codes(TREE, patch) == [code]


OUTSIDE = ["../evil", "vllm/../evil", "vllm/./m.py", "vllm//m.py", "torch/__init__.py", "vllm",
           "vllm-0.32.0.dist-info/RECORD", "/etc/passwd", "vllm/a\\b", "vllm/"]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_p18_outside_the_package(path: str) -> None:
    assert codes({**TREE, path: b""}, new_file(path)) == ["patch.outside"]


def test_names_that_are_no_utf8_are_refused() -> None:
    patch = new_file("vllm/x.py").replace(b"x.py", b"x\xff.py")
    assert codes(TREE, patch) == ["patch.outside"]


def test_all_malformed_patches_of_a_series_are_reported() -> None:
    mode, module = REFUSED["odd mode"][0], REFUSED["changed submodule"][0]
    assert codes(TREE, mode + module, HEADER) == ["patch.mode", "patch.not-a-file", "patch.corrupt"]


def test_lines_of_a_refused_file_are_no_headers() -> None:
    """Its "-- a" and "++ b" are lines of text; so is its line of a mail's signature."""
    lines = b"@@ -1,3 +1,3 @@\n x\n--- a/vllm/y\n+++ b/vllm/y\n-- \n+- \n"
    refused = b"diff --git a/tests/x b/tests/x\n--- a/tests/x\n+++ b/tests/x\n" + lines
    (error,) = errors(TREE, refused)
    assert (error.code, error.where) == ("patch.outside", "p1.patch:1")
