"""Kiln PN72: no ngram draft that begins with a token which its request seldom uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.patched import spec

PATCHES = ("kiln-identity", "pn72-ngram-frequency-filter")
PN72 = PATCHES[1]
FIRST_RANK = SimpleNamespace(rank=0, tensor_parallel_size=1)

Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Pn72 = Callable[[], ModuleType]


class Row(list[int]):
    """A row of numpy's array, in the one thing that is asked of it."""

    def __eq__(self, token: object) -> Any:
        return [each == token for each in self]


class Table:
    """numpy's array of the batch's tokens."""

    def __init__(self, *rows: list[int]) -> None:
        self.rows = rows

    def __getitem__(self, at: tuple[int, slice]) -> Row:
        slot, part = at
        assert 0 <= part.start <= part.stop
        return Row(self.rows[slot][part])


@pytest.fixture
def pn72(module: Load, monkeypatch: MP) -> Pn72:
    """Imports the module, with the one function of numpy that it needs."""
    numpy: Any = ModuleType("numpy")
    numpy.count_nonzero, numpy.ndarray = sum, object
    with monkeypatch.context() as here:
        here.setitem(sys.modules, "numpy", numpy)
        code = module("_kiln_pn72")
    return lambda: code


def counts(module: Load) -> dict[str, int]:
    said = module("_kiln").said()
    return {decision: count for (patch, decision), count in said.counts.items() if patch == PN72}


# ---- the filter


def test_a_draft_passes_if_its_first_token_is_frequent(module: Load, pn72: Pn72) -> None:
    one = pn72().FrequencyFilter(4, 1024)
    tokens = [5, 1, 5, 2, 5, 3, 5, 8, 8, 8]
    table = Table(tokens, tokens, tokens)
    assert one.keep([[5, 9, 9], [8, 5], []], [10, 10, 10], table) == [[5, 9, 9], [], []]
    assert counts(module) == {"draft-kept": 1, "draft-dropped": 1}


def test_only_the_window_before_the_end_of_the_context_counts(pn72: Pn72) -> None:
    one = pn72().FrequencyFilter(2, 4)
    row = [7, 7, 0, 0, 0, 7, 0, 7, 7]
    for end, kept in [(2, True), (4, True), (5, False), (6, False), (7, False), (8, True)]:
        assert one.keep([[7]], [end], Table(row)) == ([[7]] if kept else [[]]), end


def test_slots_do_not_see_each_other(pn72: Pn72) -> None:
    one = pn72().FrequencyFilter(2, 8)
    assert one.keep([[1], [1]], [4, 4], Table([1, 1, 1, 1], [2, 2, 2, 1])) == [[1], []]


def test_a_text_shorter_than_the_least_passes_nothing(pn72: Pn72) -> None:
    assert pn72().FrequencyFilter(4, 8).keep([[1]], [3], Table([1, 1, 1])) == [[]]


def test_no_drafts_are_no_decisions(module: Load, pn72: Pn72) -> None:
    """The proposer's constructor asks for drafts of empty requests, once."""
    one = pn72().FrequencyFilter(4, 1024)
    assert one.keep([[]] * 1024, [0] * 1024, Table(*[[0]] * 1024)) == [[]] * 1024
    assert module("_kiln").said().counts == {}


def test_drafts_are_not_changed_in_place(pn72: Pn72) -> None:
    drafts = [[1, 2], [3]]
    assert pn72().FrequencyFilter(1, 8).keep(drafts, [2, 2], Table([1, 1], [1, 1])) == [[1, 2], []]
    assert drafts == [[1, 2], [3]]


def test_errors_are_not_swallowed(pn72: Pn72) -> None:
    """The original's fault: whatever went wrong, the draft passed unfiltered."""
    with pytest.raises(IndexError):
        pn72().FrequencyFilter(4, 8).keep([[1]], [], Table([1]))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    window=st.integers(1, 20),
    least=st.integers(1, 20),
    first=st.integers(0, 3),
)
def test_it_counts_as_one_would(
    pn72: Pn72, tokens: list[int], window: int, least: int, first: int
) -> None:
    one = pn72().FrequencyFilter(least, window)
    kept = one.keep([[first, 9]], [len(tokens)], Table([*tokens, first, first]))
    assert kept == ([[first, 9]] if tokens[-window:].count(first) >= least else [[]])


# ---- switches


def setenv(monkeypatch: MP, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"KILN_PN72_{name}", value)


def config(method: str | None = "ngram", v2: bool = False, model: object = 1) -> SimpleNamespace:
    speculative = SimpleNamespace(method=method) if method else None
    return SimpleNamespace(
        model_config=model, speculative_config=speculative, use_v2_model_runner=v2
    )


def test_the_switches_and_decisions_in_patch_yaml_are_those_in_the_code(pn72: Pn72) -> None:
    code, patch = pn72(), spec(PN72)
    assert code.PATCH == PN72
    assert patch.env.keys() == {code.FLAG, *code.DEFAULTS}
    for name, default in code.DEFAULTS.items():
        assert patch.env[name].default == str(default)
    assert patch.counters.keys() == {"draft-dropped", "draft-kept"}


def test_it_is_off_by_default(module: Load, pn72: Pn72, caplog: pytest.LogCaptureFixture) -> None:
    assert pn72().frequency(FIRST_RANK) is None
    pn72().check(config(None))
    pn72().check(config("mtp", v2=True))
    assert caplog.messages == []
    assert module("_kiln").said() == ({}, {}, set())


def test_on_it_says_what_it_will_do(module: Load, pn72: Pn72, monkeypatch: MP) -> None:
    setenv(monkeypatch, {"FREQUENCY_FILTER": "1", "WINDOW": "99"})
    pn72().check(config())
    one = pn72().frequency(FIRST_RANK)
    assert (one.least, one.window, one.counts) == (4, 99, True)
    settings = {(PN72, "min-observations"): "4", (PN72, "window"): "99"}
    assert module("_kiln").said() == ({}, settings, set())


def test_ranks_that_filter_alike_count_once(module: Load, pn72: Pn72, monkeypatch: MP) -> None:
    setenv(monkeypatch, {"FREQUENCY_FILTER": "1"})
    second = pn72().frequency(SimpleNamespace(rank=3, tensor_parallel_size=2))
    assert second.keep([[1]], [1], Table([1])) == [[]]
    assert counts(module) == {}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (config(None), "there is no speculative config"),
        (config("suffix"), "the method is suffix"),
        (config("ngram_gpu"), "the method is ngram_gpu"),
        (config(v2=True), "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_a_server_in_which_it_would_do_nothing_does_not_start(
    pn72: Pn72, monkeypatch: MP, one: SimpleNamespace, words: str
) -> None:
    setenv(monkeypatch, {"FREQUENCY_FILTER": "1"})
    with pytest.raises(ValueError, match=words):
        pn72().check(one)


def test_a_config_of_no_model_is_no_server(pn72: Pn72, monkeypatch: MP) -> None:
    setenv(monkeypatch, {"FREQUENCY_FILTER": "1"})
    pn72().check(config(None, model=None))


def test_numbers_without_the_switch_have_no_effect_and_it_says_so(
    pn72: Pn72, monkeypatch: MP, caplog: pytest.LogCaptureFixture
) -> None:
    setenv(monkeypatch, {"WINDOW": "99"})
    assert pn72().frequency(FIRST_RANK) is None
    assert "KILN_PN72_WINDOW: no effect, since KILN_PN72_FREQUENCY_FILTER is off" in caplog.text


@pytest.mark.parametrize(
    "variables",
    [
        {"FREQUENCY_FILTER": "on"},
        {"FREQUENCY_FILTER": "1", "MIN_OBSERVATIONS": "0"},
        {"FREQUENCY_FILTER": "1", "WINDOW": "0"},
        {"FREQUENCY_FILTER": "1", "MIN_OBSERVATIONS": "9", "WINDOW": "8"},
        {"WINDOW": "many"},
        {"FREQUENCY_WINDOW": "1024"},
    ],
)
def test_odd_switches(pn72: Pn72, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, variables)
    with pytest.raises(ValueError, match="KILN_PN72_"):
        pn72().check(config())
