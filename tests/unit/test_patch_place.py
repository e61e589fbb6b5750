"""Where a hunk may stand: at its line, or where that line of the pristine file has gone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kiln.source.diff import parse, split_lines
from kiln.source.hunks import Misfit, Placed, Text, place
from tests.helpers.git_apply import commit, git
from tests.helpers.patching import HEADER, SOURCE, TREE, apply, codes, errors

M = "vllm/config/m.py"
# Three patches to one file, each made against the pristine one, far enough from each other.
FIRST = HEADER + b"@@ -2,2 +2,5 @@\n line2 = 2\n+a = 1\n+b = 1\n+c = 1\n line3 = 3\n"
SECOND = HEADER + b"@@ -9,3 +9,2 @@\n line9 = 9\n-line10 = 10\n line11 = 11\n"
THIRD = HEADER + (
    b"@@ -5,2 +5,3 @@\n line5 = 5\n+d = 1\n line6 = 6\n"
    b"@@ -16,3 +17,3 @@\n line16 = 16\n-line17 = 17\n+line17 = 'x'\n line18 = 18\n"
)
ALL = (FIRST, SECOND, THIRD)
# On top of FIRST, at lines that it has put there.
ON_TOP = HEADER + b"@@ -3,3 +3,3 @@\n a = 1\n-b = 1\n+b = 2\n c = 1\n"


def result(*patches: bytes, source: bytes = SOURCE) -> bytes:
    return apply({**TREE, M: source}, *patches).files[M] or b""


def lines(patch: bytes) -> set[bytes]:
    return {line[1:] for line in patch.splitlines()[2:] if line.startswith(b"+")}


def test_independent_patches_fit_in_every_order_and_every_subset() -> None:
    whole = result(*ALL)
    for count in (1, 2, 3):
        for chosen in itertools.permutations(ALL, count):
            after = result(*chosen)
            assert {p for p in ALL if lines(p) <= set(after.splitlines())} >= set(chosen) - {SECOND}
            assert (b"line10 = 10\n" in after) == (SECOND not in chosen)
            assert count < 3 or after == whole


def test_a_patch_may_be_made_on_top_of_those_before_it() -> None:
    assert b"b = 2\n" in result(FIRST, ON_TOP)
    assert b"b = 2\n" in result(FIRST, ON_TOP, SECOND, THIRD)
    assert codes(TREE, SECOND, ON_TOP) == ["patch.conflict"]
    # All of a patch counts in one and the same file.
    also = ON_TOP + b"@@ -9,2 +9,3 @@\n line6 = 6\n+e = 1\n line7 = 7\n"
    assert b"e = 1\n" in result(FIRST, also)
    pristine = ON_TOP + b"@@ -6,2 +6,3 @@\n line6 = 6\n+e = 1\n line7 = 7\n"
    (error,) = errors(TREE, FIRST, pristine)
    assert error.code == "patch.ambiguous"
    assert "do not count in one and the same file" in error.what


def test_nothing_is_searched() -> None:
    """Neither its line in the pristine file nor that in the file as it is: no offset at all."""
    shifted = SECOND.replace(b"-9,3 +9,2", b"-10,3 +10,2")
    (error,) = errors(TREE, FIRST, shifted)
    assert error.code == "patch.offset"
    assert "-1 lines away" in error.what
    assert "line 10, which is line 13 after the patches before it" in error.why


REPEATED = b"head\n" + b"".join(b"def f():\n    x = 1\n    return x\n" for _ in range(3))
ONE_BLOCK = b"""--- a/vllm/t.txt
+++ b/vllm/t.txt
@@ -5,3 +5,3 @@
 def f():
-    x = 1
+    x = 2
     return x
"""
SHIFT = b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n@@ -1,2 +1,5 @@\n head\n+1\n+2\n+3\n def f():\n"


def test_two_places_that_could_be_meant() -> None:
    """One function above: the named line, as the file is now. Where the line went: its twin."""
    tree = {"vllm/t.txt": REPEATED}
    (error,) = errors(tree, SHIFT, ONE_BLOCK)
    assert error.code == "patch.ambiguous"
    assert "line 5 of the pristine file is line 5 or 8 now" in error.why
    assert apply(tree, ONE_BLOCK).files["vllm/t.txt"] == REPEATED.replace(b"1", b"2", 2).replace(
        b"2", b"1", 1
    )


def test_p2_a_twin_at_the_named_line_is_not_taken_for_a_place_that_has_changed() -> None:
    """The patch before has changed the function that is meant, and moved its twin to the line."""
    change = (
        b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n@@ -1,7 +1,10 @@\n head\n+1\n+2\n+3\n def f():\n"
        b"     x = 1\n     return x\n def f():\n-    x = 1\n+    x = 9\n     return x\n"
    )
    tree = {"vllm/t.txt": REPEATED}
    now = apply(tree, change).files["vllm/t.txt"] or b""
    assert now.splitlines()[4:7] == [b"def f():", b"    x = 1", b"    return x"]
    (error,) = errors(tree, change, ONE_BLOCK)
    assert error.code == "patch.ambiguous"
    assert "by chance" in error.why


def test_what_an_earlier_patch_has_changed_is_a_conflict_and_says_so() -> None:
    wide = HEADER + b"@@ -2,3 +2,3 @@\n line2 = 2\n-line3 = 3\n+line3 = 'x'\n line4 = 4\n"
    (error,) = errors(TREE, FIRST, wide)
    assert error.code == "patch.conflict"
    assert "a patch before it has changed these lines" in error.why
    assert "! line3 = 3" in error.why
    gone = HEADER + b"@@ -10,2 +10,3 @@\n line10 = 10\n+x = 1\n line11 = 11\n"
    assert codes(TREE, SECOND, gone) == ["patch.conflict"]


def test_a_line_like_its_own_put_between_by_another() -> None:
    """a b -> a b b: which b is meant by the patch that takes "a, b"?"""
    tree = {"vllm/t.txt": b"a\nb\nc\nd\n"}
    head = b"--- a/vllm/t.txt\n+++ b/vllm/t.txt\n"
    doubles = head + b"@@ -1,2 +1,3 @@\n a\n+b\n b\n"
    takes = head + b"@@ -1,2 +1,2 @@\n a\n-b\n+x\n"
    assert codes({"vllm/t.txt": b"a\nb\n"}, doubles, takes) == ["patch.no-context"]
    takes = head + b"@@ -1,3 +1,3 @@\n a\n-b\n+x\n b\n"
    assert apply(tree, doubles, takes).files["vllm/t.txt"] == b"a\nx\nb\nc\nd\n"
    close = {"vllm/t.txt": b"a\nb\nb\nd\n"}
    assert codes(close, doubles, takes) == ["patch.ambiguous"]


def test_two_patches_that_begin_the_file_need_context_of_each_other() -> None:
    top = HEADER + b"@@ -1,2 +1,3 @@\n+x = 0\n line1 = 1\n line2 = 2\n"
    assert codes(TREE, top, top.replace(b"x = 0", b"y = 0")) == ["patch.no-context"]
    assert result(top, FIRST).startswith(b"x = 0\nline1 = 1\nline2 = 2\na = 1\n")


# ---- several mails in one file


def mail(patch: bytes) -> bytes:
    return (
        b"From "
        + b"0" * 40
        + b" Mon Sep 17 00:00:00 2001\nSubject: x\n\n"
        + patch
        + b"-- \n2.39\n\n"
    )


@pytest.mark.parametrize("before", [(), (FIRST,)], ids=["pristine", "shifted"])
def test_each_mail_counts_in_what_the_mails_before_it_made(before: tuple[bytes, ...]) -> None:
    one = HEADER + b"@@ -8,2 +8,4 @@\n line8 = 8\n+p = 1\n+q = 1\n line9 = 9\n"
    two = HEADER + (
        b"@@ -9,3 +9,3 @@\n p = 1\n-q = 1\n+q = 2\n line9 = 9\n"
        b"@@ -17,2 +17,3 @@\n line15 = 15\n+r = 1\n line16 = 16\n"
    )
    after = result(*before, mail(one) + mail(two))
    assert b"line8 = 8\np = 1\nq = 2\nline9 = 9\n" in after
    assert b"line15 = 15\nr = 1\nline16 = 16\n" in after
    assert len(apply(TREE, mail(one) + mail(two)).patches[0].files) == 1
    # Not as two patches: the second does not count in what a patch before it has moved.
    assert codes(TREE, FIRST, one, two) == ["patch.offset", "patch.offset"]


def test_a_series_of_mails_that_takes_itself_back_changes_nothing() -> None:
    back = SECOND.replace(b"-9,3 +9,2", b"-9,2 +9,3").replace(b"-line10", b"+line10")
    assert codes(TREE, mail(SECOND) + mail(back)) == ["patch.no-change"]
    assert codes(TREE, mail(SECOND) + mail(SECOND)) == ["patch.already-applied"]


# ---- for those who ask about one hunk


def test_place() -> None:
    hunk = parse(SECOND, "p.patch")[0].hunks[0]
    text = Text.pristine(split_lines(SOURCE))
    found = place(hunk, text, M, "p.patch")
    assert found == Placed(hunk, 8, named=True, pristine=True)
    after = text.apply([found])
    assert after.data == SOURCE.replace(b"line10 = 10\n", b"")
    assert (after.now(8), after.now(9), after.now(10), after.now(19)) == (8, None, 9, 18)
    first = place(parse(FIRST, "")[0].hunks[0], text, M, "")
    assert isinstance(first, Placed)
    moved = place(hunk, text.apply([first]), M, "p.patch")
    assert moved == Placed(hunk, 11, named=False, pristine=True)


def test_place_explains_a_misfit_with_data() -> None:
    hunk = parse(SECOND, "p.patch")[0].hunks[0]
    found = place(hunk, Text.pristine(split_lines(b"x\n" + SOURCE + SOURCE)), M, "p.patch")
    assert isinstance(found, Misfit)
    assert (found.code, found.path, found.hunk) == ("patch.offset", M, hunk)
    assert (found.at, found.places) == (8, (9, 29))
    assert found.error.where == "p.patch:3"


@pytest.mark.parametrize("options", [[], ["--cover-letter"], ["-U1", "--full-index", "-M"]])
def test_what_git_format_patch_writes_of_several_commits(
    tmp_path: Path, options: list[str]
) -> None:
    file, other = tmp_path / M, tmp_path / "vllm/config/moved.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").touch()
    file.write_bytes(SOURCE)
    commit(tmp_path)
    file.write_bytes(b"# first\n" + SOURCE.replace(b"line10 = 10\n", b""))
    (tmp_path / "vllm/new.py").write_bytes(b"x = 1\n")
    commit(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"# first\n", b"# second\n"))
    (tmp_path / "vllm/new.py").write_bytes(b"x = 2\n")
    commit(tmp_path)
    other.write_bytes(file.read_bytes().replace(b"line20 = 20\n", b"line20 = 0\n"))
    file.unlink()
    commit(tmp_path)
    mails = git(tmp_path, "format-patch", "--stdout", *options, "-3").stdout
    assert mails.count(b"\nSubject: ") == 3 + ("--cover-letter" in options)
    applied = apply(TREE, mails)
    assert applied.files == {
        M: None, "vllm/new.py": b"x = 2\n", "vllm/config/moved.py": other.read_bytes(),
    }  # fmt: skip
