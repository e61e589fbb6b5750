"""Files that are not where they were: found by name or content, never by name alone."""

from __future__ import annotations

import pytest

from kiln.drift.model import PatchDrift
from kiln.drift.moved import Mover
from tests.helpers.drift import Texts, diff, judge, patch

OLD = "vllm/entrypoints/openai/tool_parsers/hermes.py"
NEW = "vllm/tool_parsers/hermes.py"
TEXT = "".join(f"def function_{n}(argument):\n    return argument + {n}\n\n\n" for n in range(20))
CHANGED = TEXT.replace("argument + 7\n", "argument + 70\n")
OTHER = "".join(f"class Another{n}:\n    value = 'other {n}'\n" for n in range(20))
FIX = patch("fix", diff(OLD, TEXT, CHANGED))


def judged(new: dict[str, str], old: dict[str, str] | None = None) -> PatchDrift:
    (drift,) = judge({OLD: TEXT, **(old or {})}, new, FIX)
    return drift


def test_a_moved_file_is_found_and_named() -> None:
    drift = judged({NEW: TEXT})
    (file,) = drift.files
    assert (drift.state, file.state, file.moved_to) == ("MOVED", "MOVED", NEW)
    assert (
        file.reason == f"now {NEW}: the only new file of that name; it holds 40 of 40 of its lines"
    )
    assert [hunk.state for hunk in file.hunks] == ["OK"]


def test_a_moved_file_that_changed_is_judged_where_it_is() -> None:
    (file,) = judged({NEW: f"# a line\n{TEXT}"}).files
    assert (file.state, file.hunks[0].state, file.hunks[0].offset) == ("MOVED", "OFFSET", 1)
    (file,) = judged({NEW: TEXT.replace("argument + 7\n", "argument - 7\n")}).files
    assert (file.state, file.moved_to) == ("CONFLICT", NEW)
    (file,) = judged({NEW: CHANGED}).files
    assert (file.state, file.moved_to) == ("ALREADY_UPSTREAM", NEW)


def test_a_file_of_the_same_name_with_other_content_is_not_it() -> None:
    (file,) = judged({NEW: OTHER}).files
    assert (file.state, file.moved_to) == ("MISSING", "")
    assert f"of its name there is {NEW}, with other content" in file.reason


def test_a_name_that_was_there_before_is_no_new_place() -> None:
    (file,) = judged({NEW: TEXT}, {NEW: TEXT}).files
    assert file.state == "MISSING"


def test_among_many_of_one_name_content_decides() -> None:
    many = {f"vllm/p{n}/hermes.py": OTHER for n in range(3)}
    (file,) = judged({**many, NEW: TEXT}).files
    assert (file.state, file.moved_to) == ("MOVED", NEW)
    assert "by content: it holds 40 of 40 of its lines" in file.reason


def test_a_file_under_another_name_is_found_by_its_content() -> None:
    (file,) = judged({"vllm/tool_parsers/hermes_parser.py": f"{TEXT}x = 1\n", NEW: OTHER}).files
    assert (file.state, file.moved_to) == ("MOVED", "vllm/tool_parsers/hermes_parser.py")
    assert "by content" in file.reason


def test_a_file_merged_into_one_that_was_there_is_found() -> None:
    old = {"vllm/big.py": OTHER}
    (file,) = judged({"vllm/big.py": OTHER + TEXT, "vllm/small.py": ""}, old).files
    assert (file.state, file.moved_to) == ("MOVED", "vllm/big.py")


def test_two_copies_are_ambiguous() -> None:
    (file,) = judged({"vllm/a/one.py": TEXT, "vllm/b/two.py": TEXT}).files
    assert (file.state, file.moved_to) == ("AMBIGUOUS", "")
    assert file.reason.splitlines()[1:] == ["vllm/a/one.py", "vllm/b/two.py"]


def test_without_the_own_source_the_lines_of_the_patch_have_to_do() -> None:
    (drift,) = judge(None, {NEW: TEXT, "vllm/x.py": OTHER}, FIX)
    assert (drift.state, drift.files[0].moved_to) == ("MOVED", NEW)
    assert "the lines that the patch shows of it" in drift.files[0].reason


def test_later_patches_go_on_in_the_moved_file() -> None:
    second = CHANGED.replace("argument + 70\n", "argument + 70 + 1\n")
    on_top = patch("top", diff(OLD, CHANGED, second))
    first, then = judge({OLD: TEXT}, {NEW: TEXT}, FIX, on_top)
    assert [first.state, then.state] == ["MOVED", "MOVED"]
    assert [hunk.state for hunk in then.files[0].hunks] == ["OK"]


@pytest.mark.parametrize("shown", [(), (b"    )\n", b"\n")])
def test_what_shows_too_little_is_not_looked_for(shown: tuple[bytes, ...]) -> None:
    move = Mover(None, Texts({NEW: TEXT})).find(OLD, shown)
    assert (move.path, move.candidates) == ("", ())
    assert "too little" in move.how
