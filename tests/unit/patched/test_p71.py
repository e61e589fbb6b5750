"""Kiln P71: when the switch has something to do. The rule itself runs with a torch:
tests/e2e/test_p71_distribution.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PATCHES = ("kiln-identity", "p71-block-verify")
FLAG = "KILN_P71_BLOCK_VERIFY"

Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch


@pytest.fixture
def p71(module: Load, monkeypatch: MP) -> Callable[..., ModuleType]:
    """Imports the module with the switch as given; torch is only needed for the rule."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))

    def load(on: str = "1") -> ModuleType:
        monkeypatch.setenv(FLAG, on)
        return module("_kiln_p71")

    return load


def config(**changes: Any) -> SimpleNamespace:
    speculative = SimpleNamespace(
        method="draft_model",
        use_eagle=lambda: False,
        uses_draft_model=lambda: True,
        draft_sample_method="probabilistic",
        rejection_sample_method="standard",
        num_speculative_tokens=4,
    )
    whole = SimpleNamespace(speculative_config=speculative, use_v2_model_runner=False)
    for name, value in changes.items():
        setattr(
            whole if hasattr(whole, name) or name == "watermark_config" else speculative,
            name,
            value,
        )
    return whole


def test_a_config_that_it_can_work_with(p71: Callable[..., ModuleType]) -> None:
    p71().check(config())
    p71().check(config(method="mtp", use_eagle=lambda: True, uses_draft_model=lambda: False))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"speculative_config": None}, "no --speculative-config"),
        ({"method": "ngram", "uses_draft_model": lambda: False}, "ngram has no draft prob"),
        ({"draft_sample_method": "greedy"}, "greedy, not probabilistic"),
        ({"rejection_sample_method": "synthetic"}, "synthetic, not standard"),
        ({"num_speculative_tokens": 1}, "one speculative token"),
        ({"use_v2_model_runner": True}, "V2"),
        ({"watermark_config": object()}, "watermarking"),
    ],
)
def test_a_config_in_which_it_would_do_nothing_stops_the_server(
    p71: Callable[..., ModuleType], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        p71().check(config(**changes))


def test_off_it_asks_for_nothing(p71: Callable[..., ModuleType]) -> None:
    off = p71("0")
    off.check(config(speculative_config=None))
    assert off.decides(object(), 4, False) is False


@pytest.mark.parametrize("text", ["yes", "", "2"])
def test_an_odd_switch_stops_the_import(p71: Callable[..., ModuleType], text: str) -> None:
    with pytest.raises(ValueError, match=FLAG):
        p71(text)


def test_an_unknown_switch_stops_the_server(
    p71: Callable[..., ModuleType], monkeypatch: MP
) -> None:
    monkeypatch.setenv("KILN_P71_BLOCK", "1")
    with pytest.raises(ValueError, match="KILN_P71_BLOCK"):
        p71().check(config())


@pytest.mark.parametrize(
    ("draft_probs", "longest", "synthetic", "block", "counted"),
    [
        (object(), 4, False, True, "step-by-block"),
        (object(), 1, False, False, "step-by-token"),
        (None, 4, False, False, "step-by-token"),
        (object(), 4, True, False, None),
    ],
)
def test_each_decision_is_counted(
    p71: Callable[..., ModuleType],
    monkeypatch: MP,
    draft_probs: object,
    longest: int,
    synthetic: bool,
    block: bool,
    counted: str | None,
) -> None:
    module, seen = p71(), list[str]()
    monkeypatch.setattr(module._kiln, "count", lambda _, decision: seen.append(decision))
    assert module.decides(draft_probs, longest, synthetic) is block
    assert seen == ([counted] if counted else [])
