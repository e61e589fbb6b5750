"""Kiln K_001: each request's own number of MTP draft tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kiln.source.patch import patch_wheel
from tests.helpers.patched import VERSIONS, added_files, real_wheel, series, spec

PATCHES = ("kiln-identity", "k001-mtp-dynamic-k")
K001 = PATCHES[1]
FLAG = "KILN_K001_DYNAMIC_K"

Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


def config(**changes: Any) -> SimpleNamespace:
    """A VllmConfig of a launch with MTP, but for `spec_...` and other fields given."""
    speculative = {
        "method": "mtp",
        "num_speculative_tokens": 5,
        "parallel_drafting": False,
        "use_gemma4_mtp": lambda: False,
        "use_step3p5_mtp": lambda: False,
    }
    parallel = {"data_parallel_size": 1, "pipeline_parallel_size": 1}
    whole: dict[str, Any] = {"use_v2_model_runner": False}
    scheduler = {"scheduler_cls": None}
    for name, value in changes.items():
        if name.startswith("spec_"):
            speculative[name.removeprefix("spec_")] = value
        else:
            (part,) = [p for p in (parallel, scheduler, whole) if name in p]
            part[name] = value
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**speculative),
        parallel_config=SimpleNamespace(**parallel),
        scheduler_config=SimpleNamespace(**scheduler),
        **whole,
    )


@pytest.fixture
def k001(module: Load) -> ModuleType:
    return module("_kiln_k001")


@pytest.fixture
def on(monkeypatch: MP, k001: ModuleType) -> Callable[..., Any]:
    """Makes a controller with the switch on: on(most, THRESHOLD="0.5")."""

    def make(most: int = 5, **switches: str) -> Any:
        monkeypatch.setenv(FLAG, "1")
        for name, value in switches.items():
            monkeypatch.setenv(f"KILN_K001_{name}", value)
        return k001.controller(config(spec_num_speculative_tokens=most))

    return make


def counts(k001: ModuleType) -> dict[str, int]:
    """What has been counted, by decision."""
    said = k001._kiln.said().counts
    assert {patch for patch, _ in said} <= {K001}
    return {decision: number for (_, decision), number in said.items()}


def drafts(controller: Any, request: str, rates: list[float]) -> list[int]:
    """K after each draft of a request's own length, of which these shares are accepted."""
    result = []
    for rate in rates:
        controller.width([request])
        drafted = controller.limit(request)
        controller.observe(request, drafted, round(rate * drafted))
        result.append(controller.width([request]))
    return result


# ---- switches and refusals


def test_off_by_default(k001: ModuleType, caplog: Log) -> None:
    for some in (config(), config(spec_method="ngram"), config(use_v2_model_runner=True)):
        k001.check(some)
        assert k001.controller(some) is None
    k001.pass_counter("DraftModelProposer", 0)(3)
    assert caplog.messages == []
    assert k001._kiln.said() == ({}, {}, set())


def test_the_switches_and_counters_in_patch_yaml_are_those_in_the_code(k001: ModuleType) -> None:
    declared = spec(K001)
    assert declared.env.keys() == {k001.FLAG, *k001.VALUES}
    default = k001.Settings(5, 5)
    assert {name: switch.default for name, switch in declared.env.items()} == {
        FLAG: "0",
        k001.THRESHOLD: str(default.threshold),
        k001.INITIAL: "",
        k001.WINDOW: str(default.window),
        k001.LOG_CHANGES: str(default.log_changes),
    }
    assert declared.counters.keys() == {"k-raised", "k-lowered", "draft-shortened", "pass-saved"}


def test_settings_are_shown(on: Callable[..., Any], k001: ModuleType) -> None:
    on(4, THRESHOLD="0.5", INITIAL="2", WINDOW="6", LOG_CHANGES="0")
    assert k001._kiln.said().settings == {
        (K001, "most"): "4",
        (K001, "initial"): "2",
        (K001, "threshold"): "0.5",
        (K001, "window"): "6",
        (K001, "log_changes"): "0",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec_method": "ngram"}, "the method is ngram, not mtp"),
        ({"spec_method": "draft_model"}, "the method is draft_model, not mtp"),
        ({"spec_method": "eagle3"}, "the method is eagle3, not mtp"),
        ({"spec_num_speculative_tokens": 1}, "nothing to adapt"),
        ({"spec_use_gemma4_mtp": lambda: True}, "do not come from EagleProposer"),
        ({"spec_use_step3p5_mtp": lambda: True}, "do not come from EagleProposer"),
        ({"spec_parallel_drafting": True}, "parallel_drafting"),
        ({"spec_num_speculative_tokens_per_batch_size": [(1, 4, 3)]}, "one or the other"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"data_parallel_size": 2}, "data parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"scheduler_cls": "my.Scheduler"}, "scheduler of your own"),
    ],
)
def test_a_launch_for_which_it_is_not_made_does_not_start(
    k001: ModuleType, monkeypatch: MP, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv(FLAG, "1")
    for stop in (k001.check, k001.controller):
        with pytest.raises(ValueError, match=f"{FLAG}=1 cannot work here: .*{said}"):
            stop(config(**changes))


def test_no_speculation_and_several_reasons_at_once(k001: ModuleType, monkeypatch: MP) -> None:
    monkeypatch.setenv(FLAG, "1")
    none = config()
    none.speculative_config = None
    with pytest.raises(ValueError, match="no --speculative-config"):
        k001.check(none)
    with pytest.raises(ValueError, match="data parallelism; pipeline parallelism"):
        k001.check(config(data_parallel_size=2, pipeline_parallel_size=2))


def test_only_the_proposer_of_mtp_may_draft(k001: ModuleType, monkeypatch: MP) -> None:
    monkeypatch.setenv(FLAG, "1")
    for other in ("DraftModelProposer", "Step3p5MTPProposer", "Gemma4Proposer"):
        with pytest.raises(ValueError, match=f"{other} drafts, not EagleProposer"):
            k001.pass_counter(other, 0)
    for rank in (0, 1):  # both ranks of two leave the passes out; they are counted once
        saved = k001.pass_counter("EagleProposer", rank)
        saved(0)
        saved(3)
    assert counts(k001) == {"pass-saved": 3}


@pytest.mark.parametrize(
    "switches",
    [
        {"DYNAMIC_K": "yes"},
        {"DYNAMIC_K": "1", "THRESHOLD": "0.96"},  # then no mean could be high enough
        {"DYNAMIC_K": "1", "THRESHOLD": "0.04"},
        {"DYNAMIC_K": "1", "THRESHOLD": ""},
        {"DYNAMIC_K": "1", "INITIAL": "0"},
        {"DYNAMIC_K": "1", "INITIAL": "6"},
        {"DYNAMIC_K": "1", "WINDOW": "2"},
        {"DYNAMIC_K": "1", "LOG_CHANGES": "all"},
        {"DYNAMIC_K": "1", "TRESHOLD": "0.5"},
        {"INITIAL": "zero"},
    ],
)
def test_odd_switches(k001: ModuleType, monkeypatch: MP, switches: dict[str, str]) -> None:
    for name, value in switches.items():
        monkeypatch.setenv(f"KILN_K001_{name}", value)
    with pytest.raises(ValueError, match="KILN_K001_"):
        k001.check(config())


def test_what_has_no_effect_is_said(k001: ModuleType, monkeypatch: MP, caplog: Log) -> None:
    monkeypatch.setenv("KILN_K001_THRESHOLD", "0.5")
    k001.check(config())
    assert f"KILN_K001_THRESHOLD: no effect, since {FLAG} is off" in caplog.text


# ---- the algorithm


def test_a_request_begins_with_the_launchs_number(on: Callable[..., Any]) -> None:
    assert on(5).width(["a"]) == 5
    assert on(5, INITIAL="2").width(["a"]) == 2


def test_k_falls_to_one_and_no_further(on: Callable[..., Any], k001: ModuleType) -> None:
    assert drafts(on(3), "a", [0.0] * 12) == [3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert counts(k001)["k-lowered"] == 2


def test_k_climbs_from_one_to_the_launchs_number(on: Callable[..., Any], k001: ModuleType) -> None:
    assert drafts(on(4, INITIAL="1"), "a", [1.0] * 12) == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    assert counts(k001)["k-raised"] == 3


def test_k_comes_back_after_a_bad_passage(on: Callable[..., Any]) -> None:
    path = drafts(on(5), "a", [1.0] * 10 + [0.0] * 20 + [1.0] * 30)
    assert path[9] == 5
    assert path[29] == 1
    assert path[-1] == 5


def test_nothing_changes_before_three_drafts(on: Callable[..., Any]) -> None:
    assert drafts(on(5), "a", [0.0, 0.0]) == [5, 5]
    assert drafts(on(5, INITIAL="1"), "b", [1.0, 1.0]) == [1, 1]


def test_after_a_change_three_drafts_of_the_new_length_come_first(on: Callable[..., Any]) -> None:
    # Four rejected drafts among ten bring the mean under 0.65; the next six do not each
    # take one off: the rates of the old length say little of the new one.
    path = drafts(on(5), "a", [1.0] * 10 + [0.0] * 10)
    assert path[10:] == [5, 5, 5, 4, 4, 4, 3, 3, 3, 2]


@pytest.mark.parametrize(("rate", "k"), [(0.75, 4), (0.74, 3), (0.66, 3), (0.65, 2)])
def test_the_band_around_the_threshold(on: Callable[..., Any], rate: float, k: int) -> None:
    # 0.7 - 0.05 is less than 0.65 in floating point; a mean of 0.65 is low all the same.
    controller = on(5, INITIAL="3")
    for _ in range(3):
        controller.observe("a", 100, round(100 * rate))
    assert controller.width(["a"]) == k


def test_old_drafts_leave_the_window(on: Callable[..., Any]) -> None:
    controller = on(5, INITIAL="1", WINDOW="4")
    for accepted in [0, 0, 0, 0, 1, 1, 1]:
        controller.observe("a", 1, accepted)
    assert controller.width(["a"]) == 2  # 3 of the last 4


def test_what_a_grammar_left_nothing_of_says_nothing(on: Callable[..., Any]) -> None:
    controller = on(5)
    for _ in range(10):
        controller.observe("a", 0, 0)
    assert controller.width(["a"]) == 5


@pytest.mark.parametrize(("drafted", "accepted"), [(3, 4), (3, -1), (-1, -1), (0, 1)])
def test_impossible_numbers_are_an_error(
    on: Callable[..., Any], drafted: int, accepted: int
) -> None:
    with pytest.raises(ValueError, match=f"{accepted} of {drafted} draft tokens"):
        on(5).observe("a", drafted, accepted)


# ---- a batch


def test_each_request_has_its_own_length(on: Callable[..., Any], k001: ModuleType) -> None:
    # The patch that gave this one its name gave all of a batch the largest.
    controller = on(5)
    for _ in range(30):
        controller.observe("bad", 5, 0)
        controller.observe("good", 5, 5)
    assert controller.width(["bad", "good"]) == 5
    assert (controller.limit("bad"), controller.limit("good")) == (1, 5)
    assert counts(k001)["draft-shortened"] == 1
    assert controller.width(["bad"]) == 1  # and alone, it needs no more passes than its own


def test_nothing_is_verified_that_was_not_drafted(on: Callable[..., Any]) -> None:
    # K rises when the step's output comes in, after its drafts were made.
    controller = on(5, INITIAL="1")
    assert controller.width(["a"]) == 1
    for _ in range(3):
        controller.observe("a", 1, 1)
    assert controller.limit("a") == 1
    assert controller.width(["a"]) == 2
    assert controller.limit("a") == 2


def test_a_new_request_does_not_inherit(on: Callable[..., Any]) -> None:
    # Requests are known by id, not by their slot in the batch; an id may come again too.
    controller = on(5)
    drafts(controller, "a", [0.0] * 20)
    controller.forget("a")
    controller.forget("never seen")
    assert controller.width(["a"]) == controller.width(["b"]) == 5


def test_the_log_of_changes_is_bounded(on: Callable[..., Any], caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    controller = on(5, LOG_CHANGES="2")
    drafts(controller, "a", [0.0] * 20)
    lines = [text for text in caplog.messages if text.startswith("K_001")]
    assert len(lines) == 2
    assert "request a: 5 -> 4 draft tokens, acceptance 0.00 in 3 drafts" in lines[0]
    assert lines[1].endswith("the last of 2 lines")


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.floats(0, 1), st.booleans()), min_size=1, max_size=120
)


@given(steps=STEPS, most=st.integers(2, 8), data=st.data())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_course_of_events(k001: ModuleType, steps: Any, most: int, data: st.DataObject) -> None:
    initial = data.draw(st.integers(1, most))
    controller = k001.Controller(k001.Settings(most, initial, log_changes=0))
    alone = {name: k001.Controller(k001.Settings(most, initial, log_changes=0)) for name in "abcd"}
    seen: dict[str, int] = {}
    for name, rate, ends in steps:
        width = controller.width("abcd")
        limits = {one: controller.limit(one) for one in "abcd"}
        assert width == max(limits.values()) <= most
        assert min(limits.values()) >= 1
        drafted = limits[name]
        accepted = int(rate * drafted)
        controller.observe(name, drafted, accepted)
        alone[name].width([name])
        assert alone[name].limit(name) == drafted  # nobody else's drafts matter
        alone[name].observe(name, drafted, accepted)
        seen[name] = seen.get(name, 0) + 1
        after = controller.width([name])
        assert abs(after - drafted) <= 1
        if seen[name] < k001.SAMPLES:
            assert after == initial
        if ends:
            controller.forget(name)
            alone[name].forget(name)
            del seen[name]
    for name in "abcd":
        controller.forget(name)
    assert not controller._requests


# ---- the patched files


def test_one_text_for_all_versions() -> None:
    assert len({added_files(K001, v)["vllm/_kiln_k001.py"] for v in VERSIONS}) == 1


@pytest.fixture(scope="session", params=VERSIONS)
def patched(request: pytest.FixtureRequest, shared_store: Path) -> dict[str, str]:
    """Path -> text of the files that the series changes in the real wheel of a version."""
    wheel = real_wheel(request.param, shared_store)
    applied = patch_wheel(wheel, series(request.param, PATCHES))
    assert [p.id for p in applied.patches] == [*PATCHES]
    return {path: (data or b"").decode() for path, data in applied.files.items()}


@pytest.mark.net
def test_hooks_stand_where_they_should(patched: dict[str, str]) -> None:
    core = patched["vllm/v1/engine/core.py"]
    assert core.index("_kiln_k001.check(") < core.index("self.model_executor = ")
    scheduler = patched["vllm/v1/core/sched/scheduler.py"]
    places = [
        "    def __init__(",
        "_kiln_k001.controller(vllm_config)",
        "    def schedule(",
        "self.kiln_k001.width(num_scheduled_tokens)",
        "scheduler_output = SchedulerOutput(",
        "    def update_from_output(",
        "self.kiln_k001.observe(",
        "    def update_draft_token_ids(",
        "self.kiln_k001.limit(req_id)",
        "    def update_draft_token_ids_in_output(",
        "    def _free_request(",
        "self.kiln_k001.forget(request_id)",
    ]
    found = [scheduler.index(text) for text in places]
    assert found == sorted(found)
    placeholders = patched["vllm/v1/core/sched/async_scheduler.py"]
    assert "self.kiln_k001.limit(req_id)" in placeholders
    proposer = patched["vllm/v1/spec_decode/llm_base_proposer.py"]
    told = proposer.index("self.kiln_k001 = _kiln_k001.pass_counter(")
    assert told < proposer.index("    def propose(") < proposer.index("self.kiln_k001(", told + 20)
