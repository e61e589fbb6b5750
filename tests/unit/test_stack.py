"""What an upper layer may not do."""

from __future__ import annotations

import pytest

from kiln.errors import KilnError, Problems
from kiln.image.stack import check_stack
from kiln.layer.listing import Line

BASE = [
    Line("lib", "0777", "-> usr/lib"),
    Line("usr", "0755", "dir"),
    Line("usr/lib", "0755", "dir"),
    Line("usr/lib/a", "0644", "aa"),
]


def code(**layers: list[Line]) -> str:
    try:
        check_stack({"base": BASE, **layers})
    except Problems as problems:
        return " ".join(error.code for error in problems.errors)
    except KilnError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (Line("usr/lib/b", "0644", "bb"), ""),
        (Line("usr/lib", "0755", "dir"), ""),
        (Line("usr/lib/a", "0644", "aa"), ""),
        (Line("usr/lib/a", "0644", "bb"), "image.path-clash"),
        (Line("usr/lib/a", "0755", "aa"), "image.path-clash"),
        (Line("usr/lib", "0700", "dir"), "image.folder-mode"),
        (Line("lib", "0755", "dir"), "image.over-link"),
        (Line("lib/x.so", "0644", "xx"), "image.below-no-folder"),
        (Line("usr/lib/a/b", "0644", "xx"), "image.below-no-folder"),
        (Line("usr/lib/a", "0755", "dir"), "image.other-kind"),
        (Line("usr/lib", "0644", "xx"), "image.other-kind"),
        (Line("lib", "0777", "-> opt"), "image.path-clash"),
        (Line("lib", "0644", "xx"), "image.other-kind"),
    ],
)
def test_an_upper_layer(line: Line, expected: str) -> None:
    assert code(wheels=[line]) == expected


def test_only_the_patch_layer_replaces_files() -> None:
    assert code(patches=[Line("usr/lib/a", "0644", "bb")]) == ""
    assert code(patches=[Line("lib", "0755", "dir")]) == "image.over-link"
    assert code(patches=[Line("usr/lib/a", "0777", "-> b")]) == ""
    assert code(patches=[Line("usr/lib/a", "0755", "dir")]) == "image.other-kind"
    assert code(patches=[Line("lib", "0777", "-> opt")]) == "image.path-clash"


def test_only_the_patch_layer_hides_files() -> None:
    hides = [Line("usr/lib/.wh.a", "0644", "e3")]
    assert code(patches=hides) == ""
    assert code(wheels=hides) == "image.whiteout"
    again = [Line("usr/lib/a", "0644", "bb")]
    assert code(wheels=again) == "image.path-clash"
    assert code(patches=hides, components=again) == ""


def test_a_folder_is_hidden_with_all_that_is_in_it() -> None:
    whole = [Line("usr/.wh.lib", "0644", "e3")]
    other = [Line("usr/lib", "0700", "dir"), Line("usr/lib/a", "0644", "bb")]
    assert code(patches=whole, components=other) == ""
    assert code(patches=[*whole, Line("usr/lib", "0644", "bb")]) == ""


def test_what_a_whiteout_hides_is_there() -> None:
    assert code(patches=[Line("usr/lib/.wh.b", "0644", "e3")]) == "image.whiteout"
    opaque = [Line("usr/lib/.wh..wh..opq", "0644", "e3")]
    assert code(patches=opaque) == "image.whiteout"
    # But for bytecode: a module that does not compile has none.
    pyc = [Line("usr/lib/__pycache__/.wh.b.cpython-311.pyc", "0644", "e3")]
    assert code(patches=pyc) == ""


def test_all_problems_are_told_at_once() -> None:
    assert code(wheels=[Line("lib", "0755", "dir"), Line("usr/lib/a", "0644", "bb")]).split() == [
        "image.over-link",
        "image.path-clash",
    ]
