"""What /metrics says of patches, and what of it is believed."""

from __future__ import annotations

import pytest

from kiln.gate.ask import Asker
from kiln.gate.counters import Reading, check_series, growth, one_class, read_counters
from kiln.gate.model import Counts, Problem
from tests.helpers.fake_openai import (
    MODEL,
    FakeClient,
    Memory,
    Patched,
    Script,
    metrics,
    reply,
    silence,
)

DECLARED = {"p77": ("raised", "lowered"), "kiln-identity": ()}
KEY = ("p77", "raised")


def read(page: Script) -> Reading:
    return read_counters(Asker(FakeClient({"/metrics": page}), Memory(), MODEL))


def counter(value: object, decision: str = "raised", patch: str = "p77") -> str:
    return f'kiln_patch_decisions_total{{patch="{patch}",decision="{decision}"}} {value}\n'


def page(*lines: str) -> Reading:
    """A page with these series besides the identity's; `lowered` is always there."""
    return read(metrics() + counter(0, "lowered") + "".join(lines))


def codes(first: Reading, last: Reading) -> list[str]:
    return [problem.code for problem in check_series(first, last, DECLARED)]


def test_a_page_is_read_as_a_whole() -> None:
    found = read(
        metrics()
        + Patched(
            {KEY: 3, ("p77", "lowered"): 0},
            {("p77", "steps"): "1,3,5"},
            [("CPUModelRunner", "NgramProposer")],
            (2, 8, 5),
        ).page(2)
    )
    assert found.problems == ()
    assert len(found.replies) == 1
    assert one_class(found) == ("CPUModelRunner", "NgramProposer")
    assert found.counts() == Counts(
        {"p77": {"lowered": 0, "raised": 6}}, {"p77": {"steps": "1,3,5"}}, 4, 16, 10
    )


def test_speculation_is_summed_over_engines() -> None:
    lines = [
        f'vllm:spec_decode_num_draft_tokens_total{{engine="{at}"}} {count}\n'
        for at, count in enumerate((3, 4))
    ]
    assert page(*lines).speculation == (None, 7, None)
    broken = 'vllm:spec_decode_num_draft_tokens_total{engine="2"} NaN\n'
    assert page(*lines, broken).speculation == (None, None, None)


def test_growth() -> None:
    assert growth(page(counter(4)), page(counter("9.0")), *KEY) == 5
    assert growth(page(counter(4)), page(counter(4)), *KEY) == 0
    assert codes(page(counter(4)), page(counter(9))) == []


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((), "counter-missing"),
        ((counter(7), counter(7)), "counter-twice"),
        ((counter("NaN"),), "counter-value"),
        ((counter("+Inf"),), "counter-value"),
        ((counter(-1),), "counter-value"),
        ((counter(7.5),), "counter-value"),
        ((counter(3),), "counter-down"),
    ],
)
def test_a_counter_that_cannot_be_believed(lines: tuple[str, ...], code: str) -> None:
    before, after = page(counter(4)), page(*lines)
    problem = growth(before, after, *KEY)
    assert isinstance(problem, Problem)
    assert problem.code == code
    assert "p77: raised" in problem.detail
    assert codes(before, after) == [code]


def test_a_counter_that_came_only_later_is_not_believed_either() -> None:
    """Nobody knows from where it counted."""
    assert codes(page(), page(counter(4))) == ["counter-missing"]
    assert page().counts().decisions == {"p77": {"lowered": 0}}
    broken = page(counter("NaN"))
    assert codes(broken, page(counter(4))) == ["counter-value"]
    assert broken.counts().decisions == {"p77": {"lowered": 0}}


@pytest.mark.parametrize(
    "line",
    [
        counter(1, "invented"),
        counter(1, patch="p99"),
        'kiln_patch_decisions_total{patch="p77"} 1\n',
        "kiln_patch_decisions_total 1\n",
    ],
)
def test_a_counter_that_nobody_declared(line: str) -> None:
    whole = page(counter(1))
    assert codes(whole, page(counter(1), line)) == ["counter-undeclared"]
    assert codes(page(counter(1), line), whole) == ["counter-undeclared"]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (silence(), "no-answer"),
        (reply("gone", 500), "http-status"),
        (reply("<html>"), "metrics-unreadable"),
        (metrics() + counter("seven"), "metrics-unreadable"),
    ],
)
def test_a_page_that_cannot_be_read(script: Script, code: str) -> None:
    good, bad = page(counter(1)), read(script)
    assert codes(good, bad) == [code]
    assert codes(bad, bad) == [code]
    for found in (growth(good, bad, *KEY), growth(bad, good, *KEY), one_class(bad)):
        assert isinstance(found, Problem)
        assert found.code == code


def test_the_classes_must_be_clear() -> None:
    two = [("GPUModelRunner", "NgramProposer"), ("GPUModelRunner", "EagleProposer")]
    for classes, code in (([], "runtime-missing"), (two, "runtime-several")):
        problem = one_class(read(metrics() + Patched(classes=classes).page(0)))
        assert isinstance(problem, Problem)
        assert problem.code == code
