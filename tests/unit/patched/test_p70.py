"""P70: the lookup window of ngram drafts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from tests.helpers.patched import spec
from tests.unit.patched.speculative import Load, config, setenv

PATCHES = ("kiln-identity", "p70-auto-strict-ngram")
P70 = PATCHES[1]
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


def test_the_switches_and_decisions_in_patch_yaml_are_those_in_the_code(module: Load) -> None:
    p70, patch = module("_kiln_p70"), spec(P70)
    assert p70.PATCH == P70
    assert patch.env.keys() == {p70.FLAG, p70.FLOOR}
    assert patch.env[p70.FLOOR].default == str(p70.DEFAULT_FLOOR)
    assert patch.counters.keys() == {"window-raised"}


def test_it_is_off_by_default(module: Load, caplog: Log) -> None:
    one = config()
    module("_kiln_p70").apply(one)
    assert one == config()
    assert caplog.messages == []
    assert module("_kiln").said() == ({}, {}, set())


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_both_ends_are_raised_and_it_says_so(
    module: Load, monkeypatch: MP, caplog: Log, method: str
) -> None:
    setenv(monkeypatch, P70_STRICT_NGRAM="1")
    one = config(method=method, prompt_lookup_min=2, prompt_lookup_max=5)
    module("_kiln_p70").apply(one)
    assert one == config(method=method, prompt_lookup_min=8, prompt_lookup_max=8)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "prompt_lookup_min 2 -> 8, prompt_lookup_max 5 -> 8" in record.getMessage()
    said = module("_kiln").said()
    assert said.counts == {(P70, "window-raised"): 1}
    assert said.settings == {(P70, "prompt_lookup_min"): "8", (P70, "prompt_lookup_max"): "8"}


def test_a_window_that_is_strict_already_is_no_decision(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P70_STRICT_NGRAM="1")
    one = config(prompt_lookup_min=9, prompt_lookup_max=12)
    module("_kiln_p70").apply(one)
    said = module("_kiln").said()
    assert said.counts == {}
    assert said.settings == {(P70, "prompt_lookup_min"): "9", (P70, "prompt_lookup_max"): "12"}


@pytest.mark.parametrize(
    ("window", "floor", "result"),
    [
        ((5, 5), 8, (8, 8)),
        ((8, 8), 8, (8, 8)),
        ((2, 10), 8, (8, 10)),
        ((9, 12), 8, (9, 12)),
        ((5, 5), 3, (5, 5)),
    ],
)
def test_window(module: Load, window: tuple[int, int], floor: int, result: tuple[int, int]) -> None:
    assert module("_kiln_p70").strict_lookup(*window, floor) == result


def test_floor(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P70_STRICT_NGRAM="1", P70_MIN_LOOKUP="12")
    one = config(prompt_lookup_max=10)
    module("_kiln_p70").apply(one)
    assert (one.prompt_lookup_min, one.prompt_lookup_max) == (12, 12)


@pytest.mark.parametrize(
    ("variables", "fields", "words"),
    [
        ({"P70_STRICT_NGRAM": "1"}, {"method": "mtp"}, "no effect: the method is mtp"),
        ({"P70_STRICT_NGRAM": "1"}, {"method": "suffix"}, "no effect: the method is suffix"),
        ({"P70_MIN_LOOKUP": "9"}, {}, "P70_MIN_LOOKUP has no effect"),
    ],
)
def test_it_says_what_has_no_effect(
    module: Load,
    monkeypatch: MP,
    caplog: Log,
    variables: Mapping[str, str],
    fields: Mapping[str, Any],
    words: str,
) -> None:
    setenv(monkeypatch, **variables)
    one = config(**fields)
    module("_kiln_p70").apply(one)
    assert one == config(**fields)
    assert words in caplog.text
    assert module("_kiln").said() == ({}, {}, set())


@pytest.mark.parametrize(
    "variables",
    [
        {"P70_STRICT_NGRAM": "yes"},
        {"P70_STRICT_NGRAM": "1", "P70_MIN_LOOKUP": "0"},
        {"P70_MIN_LOOKUP": "eight"},
        {"P70_STRICTNGRAM": "1"},
    ],
)
def test_odd_switches(module: Load, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, **variables)
    with pytest.raises(ValueError, match="KILN_P70_"):
        module("_kiln_p70").apply(config())
