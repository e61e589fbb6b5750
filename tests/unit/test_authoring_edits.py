"""Edits of YAML that a person wrote: one thing changes, all else stays to the character."""

from __future__ import annotations

import pytest

from kiln.authoring.edits import add_version, narrow_version, set_patches
from kiln.errors import BadInput
from kiln.pins.convert import convert
from kiln.pins.model import Pins
from kiln.pins.patch import Patch, PatchVersion
from kiln.pins.problems import Collector
from kiln.pins.yaml import parse
from tests.helpers.patch_work import PINS

HEAD = "title: t  # short\nwhy: >-\n  so and\n  so\norigin: own\n"


def patch_of(text: str) -> Patch:
    problems = Collector("patch.yaml")
    return convert(parse(text, problems), Patch, problems)


def pins_of(text: str) -> Pins:
    problems = Collector("pins.yaml")
    return convert(parse(text, problems), Pins, problems)


NEW = PatchVersion("==0.24.0", "0.24.0.patch")
ROW = '{range: "==0.24.0", file: 0.24.0.patch}'

BLOCK = """\
versions:
  # the old ones
  - {range: "==0.23.0", file: 0.23.0.patch}  # by hand
  # the new one
  - {range: "==0.32.0", file: 0.32.0.patch}
"""


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        (BLOCK, BLOCK.replace("  # the new one", f"  - {ROW}\n  # the new one")),
        (
            'versions:\n- {range: "==0.23.0", file: a.patch}  # x\nenv: {}\n',
            f'versions:\n- {{range: "==0.23.0", file: a.patch}}  # x\n- {ROW}\nenv: {{}}\n',
        ),
        (
            "versions:\n  - range: ==0.23.0\n    file: a.patch\n\n# env comes here\nenv: {}\n",
            f"versions:\n  - range: ==0.23.0\n    file: a.patch\n  - {ROW}\n\n"
            "# env comes here\nenv: {}\n",
        ),
        (
            'versions: [{range: "==0.23.0", file: a.patch}]',
            f'versions: [{{range: "==0.23.0", file: a.patch}}, {ROW}]',
        ),
        (
            'versions: [\n  {range: ">=0.25", file: a.patch},\n]\n',
            f'versions: [\n  {ROW}, {{range: ">=0.25", file: a.patch}},\n]\n',
        ),
        (  # no line feed at the end of the file
            'versions:\n  - {range: "==0.23.0", file: a.patch}',
            f'versions:\n  - {{range: "==0.23.0", file: a.patch}}\n  - {ROW}',
        ),
    ],
)
def test_a_version_is_added_in_the_lists_own_style(versions: str, wanted: str) -> None:
    text = HEAD + versions
    assert add_version(text, patch_of(text), NEW, "patch.yaml") == HEAD + wanted


def test_line_ends_stay() -> None:
    text = (HEAD + BLOCK).replace("\n", "\r\n")
    changed = add_version(text, patch_of(text), NEW, "patch.yaml")
    assert changed.replace("\r\n", "") == changed.replace("\r\n", "").replace("\n", "")
    assert changed.replace(f"  - {ROW}\r\n", "") == text


def test_a_range_is_narrowed() -> None:
    text = HEAD + "versions:\n  - {range: '>=0.23,<0.25', file: a.patch}  # both\n"
    changed = narrow_version(text, patch_of(text), 0, "0.24.0", "patch.yaml")
    assert changed == text.replace("'>=0.23,<0.25'", '">=0.23,<0.25,!=0.24.0"')


def test_what_cannot_be_edited_is_said() -> None:
    text = HEAD + "versions: &v\n  - {range: ==0.23.0, file: a.patch}\n"
    text = text.replace("title: t  # short", "title: &t t").replace("own", "*t")
    assert add_version(text, patch_of(text), NEW, "x")  # aliases elsewhere do no harm
    text = HEAD + "versions:\n  - &a {range: ==0.23.0, file: a.patch}\n  - *a\n"
    with pytest.raises(BadInput) as caught:
        narrow_version(text, patch_of(text), 0, "0.23.0", "patches/x/patch.yaml")
    assert caught.value.code == "authoring.by-hand"
    assert caught.value.where == "patches/x/patch.yaml"
    assert '"==0.23.0,!=0.23.0"' in caught.value.fix


def test_a_flow_series_is_rewritten() -> None:
    changed = set_patches(PINS, pins_of(PINS), "v1", ["engine", "base", "new"], "pins.yaml")
    assert changed == PINS.replace("[base, engine, config]", "[engine, base, new]")


def test_a_block_series_keeps_its_comments() -> None:
    changed = set_patches(PINS, pins_of(PINS), "v2", ["config", "base", "new"], "pins.yaml")
    assert changed == PINS.replace(
        "      # first\n      - base\n      - engine\n      - config\n",
        "      - config\n      # first\n      - base\n      - new\n",
    )
    emptied = set_patches(PINS, pins_of(PINS), "v2", [], "pins.yaml")
    assert pins_of(emptied).pins["v2"].patches == ()


def test_a_pin_without_patches_gets_the_line() -> None:
    text = PINS.replace("    patches: [base, engine, config]  # in this order\n", "")
    changed = set_patches(text, pins_of(text), "v1", ["base"], "pins.yaml")
    assert pins_of(changed).pins["v1"].patches == ("base",)
    assert changed.replace("    patches: [base]\n", "") == text


def test_a_comment_inside_a_flow_series_is_not_lost() -> None:
    text = PINS.replace("[base, engine, config]", "[base, # why\n      engine]")
    with pytest.raises(BadInput) as caught:
        set_patches(text, pins_of(text), "v1", ["base"], "pins.yaml")
    assert caught.value.code == "authoring.by-hand"
    assert "patches: [base]" in caught.value.fix
