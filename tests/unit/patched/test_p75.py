"""P75: suffix decoding for a launch that was written for ngram."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.patched import spec
from tests.unit.patched.speculative import Load, config, setenv

PATCHES = ("kiln-identity", "p75-suffix-decoding")
P75 = PATCHES[1]
MODULES = ("arctic_inference", "arctic_inference.suffix_decoding")
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def _no_arctic(monkeypatch: MP) -> None:
    """An image without arctic-inference, whatever this machine has."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def arctic(monkeypatch: MP) -> None:
    """An arctic-inference that can be loaded."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.fixture
def broken_arctic(site: Path, monkeypatch: MP) -> None:
    """One that was installed without its compiled part."""
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    (site / "arctic_inference").mkdir()
    (site / "arctic_inference/__init__.py").touch()
    (site / "arctic_inference/suffix_decoding.py").write_text("from . import _C\n")


def test_the_switches_and_decisions_in_patch_yaml_are_those_in_the_code(module: Load) -> None:
    p75, patch = module("_kiln_p75"), spec(P75)
    assert p75.PATCH == P75
    assert patch.env.keys() == {p75.FLAG, p75.FALLBACK, *p75.SETTINGS}
    assert patch.counters.keys() == {"switched", "fell-back"}


def test_it_is_off_by_default(module: Load, caplog: Log) -> None:
    p75, one = module("_kiln_p75"), config()
    p75.apply(one)
    p75.require_speculation()
    p75.settled(one)
    assert one == config()
    assert caplog.messages == []
    assert module("_kiln").said() == ({}, {}, set())


@pytest.mark.usefixtures("arctic")
def test_ngram_becomes_suffix(module: Load, monkeypatch: MP, caplog: Log) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    one = config(model="ngram")
    module("_kiln_p75").apply(one)
    none = dict.fromkeys(["model", "num_speculative_tokens", "prompt_lookup_min",
                          "prompt_lookup_max"])  # fmt: skip
    assert one == config(method="suffix", **none)
    assert "method 'ngram' -> 'suffix'" in caplog.text
    assert "num_speculative_tokens 4 -> None" in caplog.text
    assert module("_kiln").said().counts == {(P75, "switched"): 1}


@pytest.mark.usefixtures("arctic")
def test_settings_apply_when_set_zero_included(module: Load, monkeypatch: MP, caplog: Log) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_NUM_TOKENS="6", P75_TREE_DEPTH="32",
           P75_SPEC_FACTOR="2.0", P75_MIN_PROB="0", P75_CACHE_REQUESTS="0")  # fmt: skip
    one = config()
    module("_kiln_p75").apply(one)
    assert one.num_speculative_tokens == 6
    assert one.suffix_decoding_max_tree_depth == 32
    assert one.suffix_decoding_max_spec_factor == 2.0
    assert one.suffix_decoding_min_token_prob == 0
    assert one.suffix_decoding_max_cached_requests == 0
    assert "suffix_decoding_max_cached_requests 10000 -> 0" in caplog.text


@pytest.mark.usefixtures("arctic")
def test_what_a_suffix_config_says_stays(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_SPEC_FACTOR="2.0")
    fields = {"method": "suffix", "num_speculative_tokens": 5,
              "suffix_decoding_max_cached_requests": 0}  # fmt: skip
    one = config(**fields)
    module("_kiln_p75").apply(one)
    assert one == config(**fields, suffix_decoding_max_spec_factor=2.0)
    module("_kiln_p75").apply(one)  # a config is completed again when it is copied
    assert one == config(**fields, suffix_decoding_max_spec_factor=2.0)
    assert module("_kiln").said().counts == {}


@pytest.mark.usefixtures("arctic")
def test_what_vllm_made_of_the_config_is_shown(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_CACHE_REQUESTS="0")
    p75, one = module("_kiln_p75"), config()
    p75.apply(one)
    one.num_speculative_tokens = 24  # what vLLM takes where there is none
    p75.settled(one)
    assert module("_kiln").said().settings == {
        (P75, "method"): "suffix",
        (P75, "num_speculative_tokens"): "24",
        (P75, "suffix_decoding_max_tree_depth"): "24",
        (P75, "suffix_decoding_max_spec_factor"): "1.0",
        (P75, "suffix_decoding_min_token_prob"): "0.1",
        (P75, "suffix_decoding_max_cached_requests"): "0",
    }


@pytest.mark.usefixtures("arctic")
@pytest.mark.parametrize("method", ["mtp", "eagle3", "ngram_gpu", "draft_model"])
def test_other_methods_are_refused(module: Load, monkeypatch: MP, method: str) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    with pytest.raises(ValueError, match=f"the method is {method}"):
        module("_kiln_p75").apply(config(method=method))


def test_no_speculation_is_refused(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1")
    with pytest.raises(ValueError, match="no speculative config"):
        module("_kiln_p75").require_speculation()


# ---- arctic-inference


@pytest.mark.parametrize(
    ("switch", "fallback", "method"),
    [("1", "0", "ngram"), ("1", "0", "suffix"), ("0", "0", "suffix"), ("1", "1", "suffix")],
)
def test_no_arctic_inference_is_an_error(
    module: Load, monkeypatch: MP, switch: str, fallback: str, method: str
) -> None:
    setenv(monkeypatch, P75_SUFFIX=switch, P75_FALLBACK=fallback)
    one = config(method=method)
    with pytest.raises(ImportError, match=r"needs arctic-inference.*None in sys\.modules"):
        module("_kiln_p75").apply(one)
    assert one == config(method=method)
    assert module("_kiln").said().counts == {}


@pytest.mark.usefixtures("broken_arctic")
@pytest.mark.parametrize(("switch", "method"), [("1", "ngram"), ("0", "suffix")])
def test_one_without_its_compiled_part_is_an_error(
    module: Load, monkeypatch: MP, switch: str, method: str
) -> None:
    setenv(monkeypatch, P75_SUFFIX=switch)
    with pytest.raises(ImportError, match=r"needs arctic-inference.*_C"):
        module("_kiln_p75").apply(config(method=method))


def test_ngram_without_arctic_inference_needs_none(module: Load) -> None:
    one = config()
    module("_kiln_p75").apply(one)
    assert one == config()


def test_the_fallback_is_loud(module: Load, monkeypatch: MP, caplog: Log) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_FALLBACK="1", P75_SPEC_FACTOR="2.0")
    p75, one = module("_kiln_p75"), config()
    p75.apply(one)
    p75.settled(one)
    assert one == config()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "stays ngram, not suffix" in record.getMessage()
    said = module("_kiln").said()
    assert said.counts == {(P75, "fell-back"): 1}
    assert said.settings == {(P75, "method"): "ngram"}


@pytest.mark.usefixtures("arctic")
def test_the_fallback_does_nothing_where_it_is_not_needed(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, P75_SUFFIX="1", P75_FALLBACK="1")
    one = config()
    module("_kiln_p75").apply(one)
    assert one.method == "suffix"
    assert module("_kiln").said().counts == {(P75, "switched"): 1}


# ---- switches


@pytest.mark.parametrize("name", ["SPEC_FACTOR", "FALLBACK"])
def test_it_says_what_has_no_effect(module: Load, monkeypatch: MP, caplog: Log, name: str) -> None:
    setenv(monkeypatch, **{f"P75_{name}": "1"})
    one = config()
    module("_kiln_p75").apply(one)
    assert one == config()
    assert f"KILN_P75_{name}: no effect, since KILN_P75_SUFFIX is off" in caplog.text


@pytest.mark.usefixtures("arctic")
@pytest.mark.parametrize(
    "variables",
    [
        {"P75_SUFFIX": "true"},
        {"P75_FALLBACK": "yes"},
        {"P75_SUFFIX": "1", "P75_MIN_PROB": "1.1"},
        {"P75_SUFFIX": "1", "P75_TREE_DEPTH": "0"},
        {"P75_SUFFIX": "1", "P75_NUM_TOKENS": ""},
        {"P75_SUFFIX": "1", "P75_SPEC_FATCOR": "2"},
    ],
)
def test_odd_switches(module: Load, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, **variables)
    one = config()
    with pytest.raises(ValueError, match="KILN_P75_"):
        module("_kiln_p75").apply(one)
    assert one == config()
