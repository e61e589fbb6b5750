"""Of a patched file only what changes is parsed, where it stands."""

from __future__ import annotations

import ast

import pytest

from kiln.drift import symbols
from kiln.drift.lines import Lines, patched
from kiln.drift.prune import parse_changed
from kiln.drift.syntax import Module
from kiln.drift.tree import Tree
from tests.helpers.drift import Texts, diff, patch
from tests.helpers.symbols import CONFIG, OLD, PROPOSER, UTILS, change, check, hook


def pruned(path: str, before: str, after: str) -> Module:
    """What is parsed of a file that a patch changes."""
    source = Texts({**OLD, path: before})
    found = patched([patch("fix", diff(path, before, after))], source)
    (lines,) = found.lines
    module = Tree(source).at(path)
    assert module is not None
    return parse_changed(module, lines, found.files[path] or b"")


def names(module: Module) -> dict[str, int]:
    """The functions and classes that are left, with their lines."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name: n.lineno for n in ast.walk(module.node) if isinstance(n, kinds)}


def test_what_stays_as_it_was_is_left_out_and_lines_stay() -> None:
    text = OLD[PROPOSER]
    after = text.replace("draft = found", "# one\n        draft = found")
    found = names(pruned(PROPOSER, text, after))
    assert found == {"NgramProposer": 12, "propose": 17}
    assert after.splitlines()[11].startswith("class NgramProposer")
    assert after.splitlines()[16].startswith("    def propose")


def test_a_function_that_only_loses_lines_is_kept() -> None:
    text = OLD[PROPOSER]
    found = names(pruned(PROPOSER, text, text.replace("        found = tokens[-1:]\n", "")))
    assert "propose" in found
    assert "width" not in found


def test_of_several_of_one_name_all_are_kept() -> None:
    text = f"{OLD[UTILS]}\n\nif LIMIT:\n\n    def clamp(value): ...\n\n\ndef clamp(value): ...\n"
    found = pruned(UTILS, text, text.replace("LIMIT = 8", "LIMIT = 9"))
    assert len([n for n in ast.walk(found.node) if isinstance(n, ast.FunctionDef)]) == 3


def test_a_class_in_which_only_a_comment_changes_is_parsed_as_it_is() -> None:
    text = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    found = pruned(UTILS, text, text.replace("\n    def g", "\n    # new\n    def g"))
    assert found.why == ""
    assert names(found) == {"A": 1, "f": 2, "g": 6}


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (PROPOSER, "def width(", "def breadth("),
        (PROPOSER, "propose(self, tokens, lengths)", "propose(self, k, tokens, lengths)"),
        (CONFIG, "def is_ngram(", "def uses_ngram("),
        (UTILS, "def clamp(value, low", "def clamp(value, lowest"),
    ],
)
def test_what_is_found_is_the_same_as_on_the_whole_file(
    path: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = hook(
        "from vllm.utils import clamp",
        "self.mine = clamp(self.width(1), low=1)",
        "self.config.is_ngram(); self.mine; self.nothing",
    )
    quick = check(change(path, before, after), series)

    def whole(module: Module, lines: Lines, data: bytes) -> Module:
        return Module(module.name, lines.path, ast.parse(data), data)

    monkeypatch.setattr(symbols, "parse_changed", whole)
    assert check(change(path, before, after), series) == quick
    assert quick.findings
