"""Planted changes: what becomes of a patch is found, and named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.drift.model import FileDrift
from kiln.errors import BadInput
from kiln.pins.patch import PatchFile, RetireWhen
from tests.helpers.drift import diff, judge, patch

A = "vllm/a.py"
TEXT = """\
import os

SPEED = 1


class Bold:
    def draw(self, text):
        width = len(text)
        margin = 2
        return "*" * width


class Plain:
    def show(self, text):
        return text
"""
CHANGED = TEXT.replace("margin = 2", "margin = 4")
FIX = patch("fix", diff(A, TEXT, CHANGED))
ABOVE = "# one\n# two\n# three\n"


def judged(new: Mapping[str, str], *patches: PatchFile) -> FileDrift:
    """The verdict on the one file of the last patch (FIX, if none is given)."""
    drift = judge({A: TEXT}, new, *(patches or (FIX,)))[-1]
    (file,) = drift.files
    assert drift.state == file.state
    return file


def test_the_same_source_is_ok() -> None:
    file = judged({A: TEXT})
    assert (file.state, file.reason) == ("OK", "")
    assert [(hunk.state, hunk.at, hunk.offset) for hunk in file.hunks] == [("OK", 6, 0)]


def test_lines_above_make_an_offset() -> None:
    file = judged({A: ABOVE + TEXT})
    assert (file.state, file.reason) == ("OFFSET", "of 1 hunk: 1 OFFSET by +3")
    assert [(hunk.at, hunk.offset) for hunk in file.hunks] == [(9, 3)]
    gone = judged({A: TEXT.removeprefix("import os\n\n")})
    assert [hunk.offset for hunk in gone.hunks] == [-2]


def test_a_changed_line_of_context_is_a_conflict_shown_beside_the_source() -> None:
    file = judged({A: ABOVE + TEXT.replace("width = len(text)", "width = measure(text)")})
    assert file.state == "CONFLICT"
    told, head, *table = file.hunks[0].reason.splitlines()
    assert told == "6 of 7 lines stand as they should at line 9"
    assert head.split() == ["the", "patch", "expects", "the", "source", "has"]
    (different,) = [line for line in table if "!" in line]
    assert different.split("!")[1].split() == [
        *["width", "=", "len(text)"], *["width", "=", "measure(text)"]
    ]  # fmt: skip


def test_nothing_of_a_hunk_is_left() -> None:
    file = judged({A: "x = 1\n"})
    assert file.hunks[0].reason == f"{A} has none of the lines that the hunk names"


def test_a_merged_patch_is_already_upstream() -> None:
    drift = judge({A: TEXT}, {A: ABOVE + CHANGED}, FIX)[0]
    assert (drift.state, drift.retired) == ("ALREADY_UPSTREAM", True)
    assert drift.files[0].hunks[0].at == 9


def test_half_of_a_merged_patch_is_not_retired() -> None:
    both = CHANGED.replace("SPEED = 1", "SPEED = 2")
    two = patch("two", diff(A, TEXT, both, context=1))
    drift = judge({A: TEXT}, {A: CHANGED}, two)[0]
    assert (drift.state, drift.reason, drift.retired) == ("ALREADY_UPSTREAM", "in part", False)
    assert [hunk.state for hunk in drift.files[0].hunks] == ["OK", "ALREADY_UPSTREAM"]


def test_lines_that_are_merged_in_other_surroundings_are_a_conflict_with_a_hint() -> None:
    added = TEXT.replace("        margin = 2\n", "        margin = 4\n        width += margin\n")
    new = added.replace("width = len(text)", "width = measure(text)")
    file = judged({A: new}, patch("fix", diff(A, TEXT, added)))
    assert file.state == "CONFLICT"
    assert "all that it adds stands at line 9 already" in file.hunks[0].reason


def test_two_identical_blocks_are_ambiguous() -> None:
    block = "def draw():\n    size = 1\n    return size\n\n\n"
    old = f"x = 1\n\n\n{block}y = 2\n"
    fix = patch("fix", diff(A, old, old.replace("size = 1", "size = 2"), context=1))
    new = f"{ABOVE}{block}z = 3\n\n\n{block}"
    (drift,) = judge({A: old}, {A: new}, fix)
    assert drift.state == "AMBIGUOUS"
    assert drift.files[0].hunks[0].reason == (
        "its lines stand at 2 places: lines 4, 12; in the pin's source it was the only one"
    )
    (drift,) = judge({A: old}, {A: f"# four\n{new}"}, fix)
    assert (drift.state, drift.files[0].hunks[0].at) == ("AMBIGUOUS", 0)


def test_a_block_that_was_one_of_two_still_is_the_same_one() -> None:
    block = "def draw():\n    size = 1\n    return size\n\n\n"
    old = f"{block}{block}x = 1\n"
    second = f"{block}{block.replace('size = 1', 'size = 2')}x = 1\n"
    fix = patch("fix", diff(A, old, second, context=1))
    (drift,) = judge({A: old}, {A: f"{old}y = 1\n"}, fix)
    assert (drift.state, drift.files[0].hunks[0].at) == ("OK", 6)


def test_of_identical_blocks_the_one_in_the_same_function_is_named() -> None:
    body = "        size = 1\n        margin = 2\n        return size\n\n\n"
    old = f"class Bold:\n    def draw(self):\n{body}"
    fix = patch("fix", diff(A, old, old.replace("margin = 2", "margin = 4"), context=1))
    new = f"class Plain:\n    def draw(self):\n{body}{old}"
    (drift,) = judge({A: old}, {A: new}, fix)
    assert drift.state == "AMBIGUOUS"
    assert "only line 10 is in Bold.draw" in drift.files[0].hunks[0].reason


TWIN = TEXT.replace("class Bold", "class Italic")


@pytest.mark.parametrize("new", [TWIN, ABOVE + TWIN], ids=["at its line", "some lines away"])
def test_a_twin_class_is_never_taken_for_the_one_that_is_gone(new: str) -> None:
    fix = patch("fix", diff(A, TEXT, CHANGED, context=1))
    file = judged({A: new}, fix)
    assert file.state == "CONFLICT"
    assert "in Italic.draw, where the patch is for Bold.draw" in file.hunks[0].reason


def test_a_twin_that_has_the_new_lines_does_not_make_a_patch_merged() -> None:
    fix = patch("fix", diff(A, TEXT, CHANGED, context=1))
    new = CHANGED.replace("class Bold", "class Italic")
    file = judged({A: new}, fix)
    assert file.state == "CONFLICT"
    assert "but in Italic.draw" in file.hunks[0].reason


def test_without_the_own_source_equal_lines_have_to_do() -> None:
    (drift,) = judge(None, {A: ABOVE + TEXT}, FIX)
    assert drift.state == "OFFSET"


def test_hunks_that_changed_places_are_a_conflict() -> None:
    old = "".join(f"line_{n} = {n}\n" for n in range(40))
    change = old.replace("line_5 = 5", "line_5 = 50").replace("line_30 = 30", "line_30 = 300")
    lines = old.splitlines(keepends=True)
    new = "".join([*lines[20:], *lines[:20]])
    file = judge({A: old}, {A: new}, patch("swap", diff(A, old, change)))[0].files[0]
    assert [hunk.state for hunk in file.hunks] == ["OFFSET", "CONFLICT"]
    assert "above those of a hunk before it" in file.hunks[1].reason


def test_line_ends_are_named() -> None:
    file = judged({A: TEXT.replace("\n", "\r\n")})
    assert file.state == "CONFLICT"
    assert "the file has CR LF there, the patch LF" in file.hunks[0].reason


# ---- new and deleted files


NEW = patch("new", diff("vllm/sub/new.py", "", "x = 1\n"))


def test_a_new_file() -> None:
    (file,) = judge({"vllm/sub/b.py": ""}, {"vllm/sub/b.py": ""}, NEW)[0].files
    assert file.state == "OK"
    (file,) = judge({}, {"vllm/sub/new.py": "x = 1\n"}, NEW)[0].files
    assert file.state == "ALREADY_UPSTREAM"
    (file,) = judge({}, {"vllm/sub/new.py": "x = 2\n"}, NEW)[0].files
    assert (file.state, "exists with other content" in file.reason) == ("CONFLICT", True)


def test_a_new_file_in_a_folder_that_is_gone_is_missing() -> None:
    (file,) = judge({"vllm/sub/b.py": ""}, {"vllm/elsewhere/sub/b.py": ""}, NEW)[0].files
    assert file.state == "MISSING"
    assert "only one of that name exists: vllm/elsewhere/sub" in file.reason


def test_a_file_that_is_to_go_and_has_gone() -> None:
    gone = diff(A, TEXT, "").replace(f"+++ b/{A}", "+++ /dev/null")
    (file,) = judge({A: TEXT}, {"vllm/b.py": ""}, patch("gone", gone))[0].files
    assert (file.state, file.reason) == ("ALREADY_UPSTREAM", f"{A} is gone already")
    (file,) = judge({A: TEXT}, {"vllm/moved/a.py": f"{TEXT}x = 1\n"}, patch("gone", gone))[0].files
    assert (file.state, file.moved_to) == ("CONFLICT", "vllm/moved/a.py")


def test_a_patch_that_leaves_no_python_is_a_conflict() -> None:
    old = "def f():\n    a = 1\n    b = 2\n    c = 3\n"
    fix = patch("fix", diff(A, old, old.replace("    b = 2\n", "    b = (\n    2)\n"), context=1))
    new = 'TEXT = """\ndef f():\n    a = 1\n    b = 2\n    c = 3\n"""\nx = f"""{\n1}"""\n'
    assert judge({A: old}, {A: old}, fix)[0].state == "OK"
    broken = old.replace("    c = 3\n", "    c = 3\n)\n")
    (drift,) = judge({A: old}, {A: broken}, fix)
    assert (drift.state, drift.files[0].state) == ("CONFLICT", "CONFLICT")
    assert "no longer Python after the patch" in drift.files[0].reason
    assert judge({A: old}, {A: new}, fix)[0].state in ("OFFSET", "CONFLICT")


def test_a_patch_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        judge({A: TEXT}, {A: TEXT}, PatchFile("bad", b"no patch\n"))
    assert caught.value.code == "patch.corrupt"


# ---- a series


SECOND = CHANGED.replace("margin = 4", "margin = 4\n        gap = 1")


def test_a_patch_is_judged_on_what_those_before_it_left() -> None:
    on_top = patch("top", diff(A, CHANGED, SECOND))
    assert [drift.state for drift in judge({A: TEXT}, {A: TEXT}, FIX, on_top)] == ["OK", "OK"]
    moved = judge({A: TEXT}, {A: ABOVE + TEXT}, FIX, on_top)
    assert [drift.state for drift in moved] == ["OFFSET", "OFFSET"]
    # Counted between the pristine files: what other patches add does not matter.
    tail = patch("tail", diff(A, TEXT, TEXT.replace("return text\n", "return text + 'x'\n")))
    longer = patch("longer", diff(A, TEXT, TEXT.replace("SPEED = 1", "SPEED = 1\nB = 2\nC = 3")))
    both = judge({A: TEXT}, {A: ABOVE + TEXT}, longer, tail)
    assert [drift.files[0].hunks[0].offset for drift in both] == [3, 3]


def test_a_misfit_spares_later_patches_that_do_not_need_it() -> None:
    speed = patch("speed", diff(A, TEXT, TEXT.replace("SPEED = 1", "SPEED = 2"), context=1))
    new = TEXT.replace("width = len(text)", "width = measure(text)")
    drifts = judge({A: TEXT}, {A: new}, FIX, speed)
    assert [drift.state for drift in drifts] == ["CONFLICT", "OK"]
    assert drifts[1].files[0].after == ()


def test_a_misfit_is_named_by_those_that_need_its_lines() -> None:
    on_top = patch("top", diff(A, CHANGED, SECOND))
    new = TEXT.replace("width = len(text)", "width = measure(text)")
    drifts = judge({A: TEXT}, {A: new}, FIX, on_top)
    assert [drift.state for drift in drifts] == ["CONFLICT", "CONFLICT"]
    assert drifts[1].files[0].after == ("fix",)
    assert drifts[1].files[0].hunks[0].after == ("fix",)


def test_a_file_that_a_misfit_should_have_added_is_missing_for_its_sake() -> None:
    grow = patch("grow", diff("vllm/sub/new.py", "x = 1\n", "x = 1\ny = 2\n"))
    drifts = judge({"vllm/sub/b.py": ""}, {A: TEXT}, NEW, grow)
    assert [drift.state for drift in drifts] == ["MISSING", "MISSING"]
    assert drifts[1].files[0].after == ("new",)


def test_markers_retire_a_patch_and_its_lines_are_not_there_for_others() -> None:
    new = TEXT.replace("SPEED = 1", "SPEED = 1\nNATIVE = True")
    rules = (RetireWhen(A, "NATIVE = True", "vLLM's own margins"),)
    fix = patch("fix", diff(A, TEXT, CHANGED), retire_when=rules)
    on_top = patch("top", diff(A, CHANGED, SECOND))
    drifts = judge({A: TEXT}, {A: new}, fix, on_top)
    assert (drifts[0].state, drifts[0].retired) == ("SUPERSEDED_BY", True)
    assert drifts[0].reason == (
        f"superseded by vLLM's own margins: {A}:4 has 'NATIVE = True'"
    )  # fmt: skip
    assert drifts[1].state == "CONFLICT"
    merged = patch("fix", diff(A, TEXT, CHANGED), retire_when=(RetireWhen(A, "NATIVE"),))
    assert judge({A: TEXT}, {A: new}, merged)[0].state == "ALREADY_UPSTREAM"
    assert judge({A: TEXT}, {A: TEXT}, fix)[0].state == "OK"


def test_a_patch_is_as_bad_as_its_worst_file() -> None:
    other = "vllm/b.py"
    text = diff(A, TEXT, CHANGED) + diff(other, TEXT, CHANGED)
    new = {A: ABOVE + TEXT, other: TEXT.replace("width = len(text)", "width = 0")}
    (drift,) = judge({A: TEXT, other: TEXT}, new, patch("both", text))
    assert (drift.state, [f.state for f in drift.files]) == ("CONFLICT", ["OFFSET", "CONFLICT"])


# ---- any lines


@given(st.data())
def test_only_the_same_lines_are_a_place(data: st.DataObject) -> None:
    """Lines may come and go around a hunk: it is found, just so far away. One line of it that
    changes: it is not, wherever else it might be thought to fit."""
    size = data.draw(st.integers(12, 40))
    old = [f"line_{n} = {n}\n" for n in range(size)]
    at = data.draw(st.integers(3, size - 4))
    new = [*old]
    new[at] = f"line_{at} = 'changed'\n"
    fix = patch("fix", diff(A, "".join(old), "".join(new)))
    above = data.draw(st.integers(0, 5))
    cut = data.draw(st.integers(0, at - 3))
    below = data.draw(st.lists(st.sampled_from(old[at + 4 :] or ["x = 1\n"]), max_size=5))
    other = [*(f"new_{n} = {n}\n" for n in range(above)), *old[cut:], *below]
    (hunk,) = judge({A: "".join(old)}, {A: "".join(other)}, fix)[0].files[0].hunks
    assert (hunk.state, hunk.offset) == ("OFFSET" if above != cut else "OK", above - cut)
    broken = [*other]
    spot = other.index(old[at]) + data.draw(st.integers(-3, 3))
    broken[spot] = "another = 1\n"
    (hunk,) = judge({A: "".join(old)}, {A: "".join(broken)}, fix)[0].files[0].hunks
    assert hunk.state == "CONFLICT"
