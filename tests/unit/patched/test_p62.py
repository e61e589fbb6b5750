"""Kiln P62: where the grammar begins when the reasoning ends inside a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PATCHES = ("kiln-identity", "p62-structured-output-timing")
FLAG = "KILN_P62_STRUCTURED_TIMING"
END = 99  # the token that ends the reasoning

Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def p62(module: Load, monkeypatch: MP, counted: list[str]) -> Callable[..., ModuleType]:
    def load(on: str = "1") -> ModuleType:
        monkeypatch.setenv(FLAG, on)
        loaded = module("_kiln_p62")
        monkeypatch.setattr(loaded._kiln, "count", lambda _, decision: counted.append(decision))
        return loaded

    return load


class Grammar:
    """Allows even tokens only."""

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        odd = [i for i, token in enumerate(tokens) if token % 2]
        return tokens[: odd[0]] if odd else tokens


class Reasoner:
    """Ends at END, as vLLM's basic parsers do; checks what it is told."""

    def is_reasoning_end_streaming(self, ids: Sequence[int], delta: Sequence[int]) -> bool:
        assert list(ids[-len(delta) :]) == list(delta)
        return END in delta


class Manager:
    """vLLM's StructuredOutputManager, as far as the patch asks it."""

    def __init__(self, advance: bool = False) -> None:
        self.advance = advance

    def _get_reasoner(self, request: Any) -> Reasoner:
        return Reasoner()

    def should_fill_bitmask(self, request: Any) -> bool:
        return bool(request.structured_output_request.reasoning_ended)

    def should_advance(self, request: Any) -> bool:
        return self.advance


def request(tokens: list[int], ended: bool = False, structured: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        all_token_ids=tokens,
        use_structured_output=structured,
        structured_output_request=SimpleNamespace(reasoning_ended=ended, grammar=Grammar()),
    )


# ---- masks


@pytest.mark.parametrize(
    ("draft", "first", "decisions"),
    [
        ([5, END, 2, 4], 2, ["end-in-draft"]),
        ([END], 1, ["end-in-draft"]),
        ([5, 7, END], 3, ["end-in-draft"]),
        ([END, END], 1, ["end-in-draft"]),
        ([5, 7], None, []),
        ([], None, []),
        ([5, -1, END], None, []),
    ],
)
def test_masks_begin_behind_the_end(
    p62: Callable[..., ModuleType],
    counted: list[str],
    draft: list[int],
    first: int | None,
    decisions: list[str],
) -> None:
    module = p62()
    wanted = module.NEVER if first is None else first
    assert module.first_position(Manager(), request([1, 2]), draft) == wanted
    assert counted == decisions


def test_when_reasoning_is_over_all_is_masked(p62: Callable[..., ModuleType]) -> None:
    assert p62().first_position(Manager(), request([1], ended=True), [5, END]) == 0


def test_off_masks_are_vllms(p62: Callable[..., ModuleType]) -> None:
    module = p62("0")
    assert module.first_position(Manager(), request([1]), [5, END, 2]) == module.NEVER
    assert module.first_position(Manager(), request([1], ended=True), [5]) == 0


# ---- accepted tokens


@pytest.mark.parametrize(
    ("new", "seen", "ended", "decisions"),
    [
        ([5, END, 2, 4], [2, 4], True, ["end-in-step"]),
        ([5, END], [], True, []),
        ([5, 7], [], False, []),
    ],
)
def test_the_grammar_sees_what_is_behind_the_end(
    p62: Callable[..., ModuleType],
    counted: list[str],
    new: list[int],
    seen: list[int],
    ended: bool,
    decisions: list[str],
) -> None:
    asked = request([1, 2, *new])
    assert list(p62().constrained(Manager(), asked, new)) == seen
    assert asked.structured_output_request.reasoning_ended is ended
    assert counted == decisions


def test_an_end_before_this_step_is_not_found_again(p62: Callable[..., ModuleType]) -> None:
    # What stands before the step's tokens is history, not news.
    assert list(p62().constrained(Manager(), request([END, 1, 5, 7]), [5, 7])) == []


@pytest.mark.parametrize("advance", [True, False])
@pytest.mark.parametrize(
    ("on", "ended", "structured"),
    [("0", False, True), ("1", True, True), ("1", False, False)],
)
def test_otherwise_it_is_vllm_that_decides(
    p62: Callable[..., ModuleType], on: str, ended: bool, structured: bool, advance: bool
) -> None:
    module, manager = p62(on), Manager(advance)
    asked = request([1, END, 3], ended, structured)
    assert list(module.constrained(manager, asked, [END, 3])) == ([END, 3] if advance else [])
    assert module.validated(manager, asked, [2, 3, 4]) == ([2] if advance else [2, 3, 4])


def test_nothing_new_is_nothing_to_see(p62: Callable[..., ModuleType]) -> None:
    assert list(p62().constrained(Manager(True), request([1]), [])) == []


# ---- drafts


@pytest.mark.parametrize(
    ("draft", "kept", "decisions"),
    [
        ([5, END, 2, 3, 4], [5, END, 2], ["draft-cut"]),
        ([5, END, 2, 4], [5, END, 2, 4], []),
        ([5, END], [5, END], []),
        ([5, 7, 9], [5, 7, 9], []),
        ([], [], []),
    ],
)
def test_a_draft_is_cut_where_the_grammar_forbids_it(
    p62: Callable[..., ModuleType],
    counted: list[str],
    draft: list[int],
    kept: list[int],
    decisions: list[str],
) -> None:
    assert p62().validated(Manager(), request([1]), draft) == kept
    assert counted == decisions


# ---- the switch


def config(speculative: object = 1, reasoning: bool = False) -> SimpleNamespace:
    outputs = SimpleNamespace(enable_in_reasoning=reasoning)
    return SimpleNamespace(speculative_config=speculative, structured_outputs_config=outputs)


@pytest.mark.parametrize(
    ("settings", "reasoner", "why"),
    [
        (config(None), object, "no --speculative-config"),
        (config(), None, "no --reasoning-parser"),
        (config(reasoning=True), object, "enable_in_reasoning"),
    ],
)
def test_a_server_in_which_it_would_do_nothing_does_not_start(
    p62: Callable[..., ModuleType], settings: SimpleNamespace, reasoner: object, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        p62().check(settings, reasoner)
    p62().check(config(), object)


def test_off_it_asks_for_nothing(p62: Callable[..., ModuleType]) -> None:
    p62("0").check(config(None), None)
