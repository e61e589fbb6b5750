"""Planted changes: a variable's default, and how vLLM reads it."""

from __future__ import annotations

import pytest

from kiln.drift.contracts import Change, compare_contracts
from kiln.drift.environment import WORKED_OUT, read_environment
from kiln.drift.tree import Tree
from kiln.progress import Silent
from tests.helpers.drift import MINI, Texts

ENVS = "vllm/envs.py"


def envs(value: str, name: str = "VLLM_X") -> dict[str, str]:
    return {**MINI, ENVS: f'import os\n\nenvironment_variables = {{\n    "{name}": {value},\n}}\n'}


def entry(value: str) -> tuple[str, bool]:
    """The value where nothing is set, and whether it is exact."""
    found = read_environment(Tree(Texts(envs(value)))).entries["VLLM_X"]
    return found.text, found.exact


def changes(old: dict[str, str], new: dict[str, str]) -> list[Change]:
    found = compare_contracts(Texts(old, label="old"), Texts(new, label="new"), None, Silent())
    return [change for change in found.changes if change.contract == "environment"]


@pytest.mark.parametrize(
    ("value", "default"),
    [
        ('lambda: os.getenv("VLLM_X", "a").lower()', "'a'"),
        ('lambda: os.getenv("VLLM_X")', "None"),
        ('lambda: bool(int(os.environ.get("VLLM_X", "0")))', "False"),
        ('lambda: os.getenv("VLLM_X", "True").lower() in ("true", "1")', "True"),
        ('lambda: os.getenv("VLLM_X", "").strip() or "13.0"', "'13.0'"),
        ('lambda: int(os.environ["VLLM_X"]) if "VLLM_X" in os.environ else 7', "7"),
        ('lambda: [] if "VLLM_X" not in os.environ else os.environ["VLLM_X"].split()', "[]"),
        ('lambda: float(os.getenv("VLLM_X", "-1"))', "-1.0"),
        ('lambda: bool(int(os.getenv("VLLM_X", "0")) or int(os.getenv("VLLM_Y", "1")))', "True"),
        ('lambda: maybe_convert_int(os.environ.get("VLLM_X", None))', "None"),
        ('env_with_choices("VLLM_X", "high", ["high", "low"])', "'high'"),
        ('deprecated_env("VLLM_X", "v1", "use y", lambda: os.getenv("VLLM_X", "q"))', "'q'"),
    ],
)  # fmt: skip
def test_the_value_where_nothing_is_set_is_worked_out(value: str, default: str) -> None:
    assert entry(value) == (default, True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('lambda: int(os.getenv("VLLM_X", "many"))', "'many'"),
        ('lambda: os.path.join(os.getenv("VLLM_X", ROOT), "x")', "ROOT"),
        ("get_port", WORKED_OUT),
        ('lambda: os.getenv(f"VLLM_X", "1")', WORKED_OUT),
        ('lambda: {"1": True}.get(os.getenv("VLLM_X", ""))', "''"),
    ],
)
def test_what_cannot_be_worked_out_is_not_guessed(value: str, shown: str) -> None:
    assert entry(value) == (shown, False)


def test_a_changed_default_is_found_and_named() -> None:
    old = envs('lambda: bool(int(os.getenv("VLLM_X", "0")))')
    (change,) = changes(old, envs('lambda: bool(int(os.getenv("VLLM_X", "1")))'))
    assert (change.name, change.what, change.old, change.new) == (
        "VLLM_X",
        "default",
        "False",
        "True",
    )


def test_the_same_default_read_otherwise_is_no_other_default() -> None:
    old = envs('lambda: bool(int(os.getenv("VLLM_X", "0")))')
    (change,) = changes(old, envs('lambda: os.getenv("VLLM_X", "no") in ("1", "yes")'))
    assert change.what == "reading"
    assert change.new == "os.getenv('VLLM_X') in ('1', 'yes')"


def test_two_texts_of_a_default_are_not_two_values() -> None:
    old, new = (envs(f'lambda: join(os.getenv("VLLM_X", {name}))') for name in ("ROOT", "BASE"))
    (change,) = changes(old, new)
    assert change.what == "reading"
    assert change.why == "where the variable is unset, another value may hold"
    assert (change.old, change.new) == (
        "ROOT, read by join(os.getenv('VLLM_X'))",
        "BASE, read by join(os.getenv('VLLM_X'))",
    )


def test_a_variable_that_is_gone_is_told_with_who_still_reads_it() -> None:
    old, new = envs('lambda: os.getenv("VLLM_X", "1")'), envs("lambda: 1", "VLLM_Y")
    gone, added = changes(old, new)
    assert (gone.name, gone.what, added.name, added.what) == ("VLLM_X", "gone", "VLLM_Y", "added")
    assert gone.why == "vLLM no longer knows the variable; setting it does nothing"
    new["vllm/more.py"] = 'import os\n\nX = os.environ.get("VLLM_X")\n'
    assert changes(old, new)[0].why.endswith("vllm/more.py still names it")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\n", "has no dictionary environment_variables written out in it"),
        ("environment_variables = dict(A=1)\n", "has no dictionary"),
        ("environment_variables = {}\n", "is empty"),
        ("environment_variables = {\n", "cannot be parsed"),
    ],
)
def test_a_table_that_cannot_be_read_is_unknown(text: str, why: str) -> None:
    new = {**MINI, ENVS: text}
    found = compare_contracts(Texts(MINI, label="old"), Texts(new, label="new"), None, Silent())
    assert why in found.unknown["environment"]
    assert found.unknown["environment"].startswith("new: ")
    assert [c for c in found.changes if c.contract == "environment"] == []


def test_an_entry_with_a_computed_name_is_named() -> None:
    new = {**MINI, ENVS: MINI[ENVS].replace('"VLLM_SPEED":', 'prefix + "SPEED":')}
    found = compare_contracts(Texts(MINI, label="old"), Texts(new, label="new"), None, Silent())
    assert found.unread["environment"] == (f"new: {ENVS}:4",)
    (change,) = found.changes
    assert change.why.endswith(f"unless it is at {ENVS}:4")
