"""Kiln P77: ngram drafts as long as they have lately deserved to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.patched import spec
from tests.unit.patched.ngram import Engine, all_of, first_of, none_of

PATCHES = ("kiln-identity", "p77-adaptive-ngram-k")
P77 = PATCHES[1]
FIRST_RANK = SimpleNamespace(rank=0, tensor_parallel_size=1)

Load = Callable[[str], ModuleType]
MP = pytest.MonkeyPatch
Make = Callable[..., Engine]


@pytest.fixture
def engine(module: Load) -> Make:
    def make(most: int, **tuning: Any) -> Engine:
        return Engine(module("_kiln_p77"), most, **tuning)

    return make


def counts(module: Load) -> Counter[str]:
    said = module("_kiln").said()
    return Counter({name: count for (patch, name), count in said.counts.items() if patch == P77})


# ---- the length


@pytest.mark.parametrize(
    ("most", "steps"),
    [(1, (0, 1)), (2, (0, 1, 2)), (3, (0, 1, 3)), (4, (0, 1, 3, 4)), (8, (0, 1, 3, 5, 7, 8))],
)
def test_steps_end_at_the_launchers_number(module: Load, most: int, steps: tuple[int, ...]) -> None:
    assert module("_kiln_p77").steps(most) == steps


def test_it_climbs_from_1_to_3_to_5_on_accepted_drafts(module: Load, engine: Make) -> None:
    one = engine(5, start_k=1)
    one.alive["a"] = all_of
    assert one.steps(40) == [1, 3, 5]
    assert counts(module) == {"k-raised": 2, "draft-shortened": 15}


def test_it_climbs_from_where_it_starts(engine: Make) -> None:
    one = engine(5)
    one.alive["a"] = all_of
    assert one.steps(40) == [3, 5]


def test_nothing_moves_before_the_warm_up_is_over(engine: Make) -> None:
    one = engine(5, warm_up=10)
    one.alive["a"] = none_of
    assert one.steps(10) == [3]  # the first step verifies nothing: nine drafts
    assert one.steps(1) == [1]


def test_refused_drafts_shorten_and_then_pause_it(module: Load, engine: Make) -> None:
    one = engine(5)
    one.alive["a"] = none_of
    assert one.steps(50) == [3, 1, 0]
    assert one.adaptive.before({"a"}, ["a"], [[7]], {}) == ([[]], [0])  # no search for one
    assert counts(module).items() >= {"k-lowered": 1, "drafting-paused": 1}.items()
    assert "probe" not in counts(module)


def test_a_pause_is_probed_and_ends_when_drafts_are_accepted(module: Load, engine: Make) -> None:
    one = engine(5, probe_every=20)
    one.alive["a"] = none_of
    assert one.steps(100) == [3, 1, 0, 1, 0, 1, 0, 1, 0]
    assert counts(module)["probe"] == 3
    one.alive["a"] = all_of
    assert one.steps(60) == [0, 1, 3, 5]
    assert counts(module)["drafting-paused"] == 4


def test_a_probe_waits_for_drafts_as_long_as_it_takes(engine: Make) -> None:
    one = engine(5, probe_every=1)
    one.alive["a"] = none_of
    one.steps(17)
    assert one.length("a") == 1
    for _ in range(50):  # no match: nothing is drafted, so nothing is learned
        one.drafts.clear()
        one.step()
    assert one.length("a") == 1


def test_a_raise_that_does_not_last_is_tried_less_and_less(module: Load, engine: Make) -> None:
    one = engine(5, probe_every=40)
    one.alive["a"] = first_of  # at length 1 all is accepted, at 3 a third
    one.steps(11)  # ten drafts
    assert one.length("a") == 1
    tries: list[int] = []
    for step in range(300):
        one.step()
        if counts(module)["k-raised"] > len(tries):
            tries.append(step)
    # Five drafts at length 1, at first, then twice as many each time; and five at 3.
    assert [b - a for a, b in pairwise([-1, *tries])] == [5, 15, 25, 45, 45, 45, 45, 45]
    assert counts(module)["k-lowered"] == 9


def test_a_raise_that_lasts_ends_the_longer_wait(engine: Make) -> None:
    one = engine(5)
    one.alive["a"] = first_of
    one.steps(100)
    assert one.adaptive.requests["a"].patience > 5
    one.alive["a"] = all_of
    one.steps(100)
    assert one.length("a") == 5
    one.alive["a"] = none_of  # after a long time at 5 that is no failed try
    while one.length("a") > 1:
        one.step()
    one.alive["a"] = all_of
    one.steps(5)
    assert one.length("a") == 3


def test_shares_between_the_thresholds_move_nothing(module: Load, engine: Make) -> None:
    one = engine(5)
    one.alive["a"] = lambda length: min(2, length)  # two of three: 0.67
    assert one.steps(200) == [3]
    assert counts(module).keys() == {"draft-shortened"}


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_draft_is_longer_than_the_launchers_number(engine: Make, most: int) -> None:
    one = engine(most, start_k=100)
    one.alive["a"] = all_of
    assert one.steps(100) == [most]


def test_vllms_own_number_for_a_step_holds(engine: Make) -> None:
    one = engine(5)
    one.alive["a"] = all_of
    for _ in range(30):
        one.step(allowed=1)
        assert len(one.drafts["a"]) == 1
    assert one.length("a") == 3  # drafts of one token prove nothing about longer ones
    for _ in range(5):
        one.step(allowed=0)
        assert one.drafts == {}
    one.step()
    one.step()
    assert one.length("a") == 5


# ---- requests


def test_requests_have_lengths_of_their_own(engine: Make) -> None:
    one = engine(5)
    one.alive |= {"good": all_of, "bad": none_of}
    for _ in range(40):
        one.step()
    assert (one.length("good"), one.length("bad")) == (5, 0)


def test_a_slot_that_another_request_takes_proves_nothing(module: Load, engine: Make) -> None:
    """The originals' fault: a reused slot looked like a burst of accepted tokens."""
    one = engine(3)
    for number in range(200):
        one.alive = {f"request-{number}": all_of}
        for _ in range(2):  # one draft each is verified, in the one slot that there is
            one.step()
    assert counts(module) == {}
    assert one.adaptive.steps[one.adaptive.start] == 3


def test_moving_between_slots_changes_nothing(module: Load) -> None:
    p77 = module("_kiln_p77")
    lengths = []
    for turn in (False, True):
        one = Engine(p77, 5)
        one.alive |= {"a": all_of, "b": none_of, "c": first_of}
        for number in range(60):
            names = [*one.alive]
            shift = number % 3 if turn else 0
            one.step([*names[shift:], *names[:shift]])
        lengths.append({name: one.length(name) for name in one.alive})
    assert lengths[0] == lengths[1] == {"a": 5, "b": 0, "c": lengths[0]["c"]}


def test_a_request_that_ends_is_dropped_and_one_that_waits_is_not(engine: Make) -> None:
    one = engine(5)
    one.alive |= {"a": all_of, "b": none_of}
    for _ in range(40):
        one.step()
    one.step(["b"])  # preempted: alive, but in no slot
    assert one.adaptive.requests.keys() == {"a", "b"}
    assert one.length("a") == 5
    one.end("a")
    one.step()
    assert one.adaptive.requests.keys() == {"b"}
    one.alive["a"] = none_of  # its name again is not it again
    one.step()
    assert one.adaptive.requests["a"].drafts == 0


def test_a_prompt_that_is_being_read_is_no_evidence(engine: Make) -> None:
    one = engine(5)
    for _ in range(30):
        tokens, lengths = one.adaptive.before({"a"}, ["a"], [[]], {})
        assert (tokens, lengths) == ([[]], [0])
    assert one.adaptive.requests == {}


def test_what_vllm_fills_drafts_up_with_is_no_evidence(engine: Make) -> None:
    one = engine(3)
    for _ in range(30):
        one.adaptive.before({"a"}, ["a"], [[7]], {"a": [-1, -1, -1]})
    assert one.adaptive.requests["a"].drafts == 0
    one.adaptive.before({"a"}, ["a"], [[7, 7]], {"a": [7, -1, -1]})
    assert one.adaptive.requests["a"].drafted == one.adaptive.requests["a"].accepted == 1


def test_new_requests_begin_where_others_ended(engine: Make) -> None:
    one = engine(5)
    for number in range(3):
        one.alive = {f"good-{number}": all_of}
        one.steps(30)
    one.alive = {"new": all_of}
    assert one.steps(1) == [5]
    for number in range(5):
        one.alive = {f"bad-{number}": none_of}
        one.steps(60)
    one.alive = {"newer": all_of}
    assert one.steps(30) == [1, 3, 5]  # never paused from the start


def test_a_request_without_evidence_does_not_move_the_start(engine: Make) -> None:
    one = engine(5)
    for number in range(50):
        one.alive = {f"short-{number}": none_of}
        one.steps(5)
    one.alive = {"new": all_of}
    assert one.steps(1) == [3]
    one.alive["good"] = all_of
    for _ in range(30):
        one.step(["good"])
    one.end("good")
    one.step()
    one.end("new")
    one.alive = {"newer": all_of}
    assert one.steps(1) == [5]


def test_slots_that_do_not_match_are_an_error(engine: Make) -> None:
    with pytest.raises(ValueError, match="zip"):
        engine(3).adaptive.before({"a", "b"}, ["a", "b"], [[1]], {})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_lengths_are_steps(module: Load, seed: int) -> None:
    chance = Random(seed)
    most = chance.randint(1, 8)
    one = Engine(
        module("_kiln_p77"),
        most,
        start_k=chance.randint(1, 9),
        warm_up=chance.randint(0, 3),
        every=chance.randint(1, 3),
        alpha=chance.choice([0.2, 1.0]),
        probe_every=chance.randint(1, 4),
    )
    for number in range(40):
        if chance.random() < 0.5:
            one.alive[f"r{number}"] = lambda length: chance.randint(0, length)
        for name in chance.sample([*one.alive], chance.randint(0, len(one.alive)) // 3):
            one.end(name)
        slots = chance.sample([*one.alive], chance.randint(0, len(one.alive)))
        one.step(slots, chance.randint(0, most))
        assert {len(draft) for draft in one.drafts.values()} <= {*range(1, most + 1)}
        assert one.adaptive.requests.keys() <= one.alive.keys()
        assert 1 <= one.adaptive.start < len(one.adaptive.steps)
    for request in one.adaptive.requests.values():
        assert 0 <= request.accepted <= request.drafted


# ---- switches


def setenv(monkeypatch: MP, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"KILN_P77_{name}", value)


def config(method: str | None = "ngram", v2: bool = False) -> SimpleNamespace:
    speculative = SimpleNamespace(method=method) if method else None
    return SimpleNamespace(speculative_config=speculative, use_v2_model_runner=v2)


def test_the_switches_and_decisions_in_patch_yaml_are_those_in_the_code(module: Load) -> None:
    p77, patch = module("_kiln_p77"), spec(P77)
    assert p77.PATCH == P77
    assert patch.env.keys() == {p77.FLAG, *p77.TUNABLES}
    defaults = p77.Tuning()
    for name, (field, *_) in p77.TUNABLES.items():
        assert patch.env[name].default == str(getattr(defaults, field))
    assert patch.counters.keys() == {
        "k-raised", "k-lowered", "drafting-paused", "probe", "draft-shortened",
    }  # fmt: skip


def test_it_is_off_by_default(module: Load, caplog: pytest.LogCaptureFixture) -> None:
    p77 = module("_kiln_p77")
    assert p77.adaptive(5, FIRST_RANK) is None
    p77.check(config(None))
    p77.check(config("mtp", v2=True))
    assert caplog.messages == []
    assert module("_kiln").said() == ({}, {}, set())


def test_on_it_says_what_it_will_do_and_counts_nothing_yet(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, {"ADAPTIVE_K": "1", "START_K": "2", "EVERY": "7", "RAISE_AT": "0.9"})
    p77 = module("_kiln_p77")
    p77.check(config())
    adaptive, other = p77.adaptive(4, FIRST_RANK), p77.adaptive(4, FIRST_RANK)
    assert adaptive.tuning == p77.Tuning(start_k=2, every=7, raise_at=0.9)
    assert adaptive is not other
    assert adaptive.requests is not other.requests
    said = module("_kiln").said()
    assert said.counts == {}
    assert said.settings == {(P77, "steps"): "0,1,3,4", (P77, "start-k"): "1"}


def test_ranks_that_decide_alike_count_once(module: Load, monkeypatch: MP) -> None:
    setenv(monkeypatch, {"ADAPTIVE_K": "1"})
    p77 = module("_kiln_p77")
    ranks = [SimpleNamespace(rank=rank, tensor_parallel_size=2) for rank in range(4)]
    assert [p77.adaptive(4, rank).counts for rank in ranks] == [True, False, True, False]
    p77.adaptive(2, ranks[1]).shorten([[1, 2]], [1])
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
    module: Load, monkeypatch: MP, one: SimpleNamespace, words: str
) -> None:
    setenv(monkeypatch, {"ADAPTIVE_K": "1"})
    with pytest.raises(ValueError, match=words):
        module("_kiln_p77").check(one)


def test_tunables_without_the_switch_have_no_effect_and_it_says_so(
    module: Load, monkeypatch: MP, caplog: pytest.LogCaptureFixture
) -> None:
    setenv(monkeypatch, {"EVERY": "7"})
    module("_kiln_p77").check(config(None))
    assert "KILN_P77_EVERY: no effect, since KILN_P77_ADAPTIVE_K is off" in caplog.text


@pytest.mark.parametrize(
    "variables",
    [
        {"ADAPTIVE_K": "yes"},
        {"ADAPTIVE_K": "1", "EVERY": "0"},
        {"ADAPTIVE_K": "1", "ALPHA": "0"},
        {"ADAPTIVE_K": "1", "ALPHA": "1.1"},
        {"ADAPTIVE_K": "1", "START_K": "0"},
        {"ADAPTIVE_K": "1", "RAISE_AT": "0.5"},
        {"ADAPTIVE_K": "1", "PAUSE_AT": "0.6"},
        {"WARM_UP": "ten"},
        {"WARMUP": "10"},
    ],
)
def test_odd_switches(module: Load, monkeypatch: MP, variables: Mapping[str, str]) -> None:
    setenv(monkeypatch, variables)
    with pytest.raises(ValueError, match="KILN_P77_"):
        module("_kiln_p77").check(config())
