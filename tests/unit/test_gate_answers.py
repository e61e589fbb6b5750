"""Putting workloads to a server, and comparing what two launches answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from kiln.gate.answers import TIE, Told, compare, run_workload
from kiln.gate.ask import Asker
from kiln.gate.model import Work
from kiln.gate.openai import Said
from kiln.gate.workloads import WORKLOADS, Workload
from kiln.run.client import Reply
from tests.helpers.fake_openai import MODEL, FakeClient, Memory, Script, reply, silence, spoken


class Keeping(FakeClient):
    """Keeps what it was asked."""

    def __init__(self, scripts: Mapping[str, Script] = {}) -> None:
        super().__init__(scripts)
        self.bodies: list[dict[str, Any]] = []

    def post_json(self, path: str, obj: object, seconds: float = 60) -> Reply:
        assert path == "/v1/completions"
        self.bodies.append(dict(obj))  # type: ignore[call-overload]
        return super().post_json(path, obj, seconds)


def ask(client: FakeClient, work: Work) -> Told:
    return run_workload(Asker(client, Memory(), MODEL), work)


def test_repeat_is_greedy_with_logprobs_and_in_order() -> None:
    client = Keeping()
    told = ask(client, Work("repeat"))
    workload = WORKLOADS["repeat"]
    assert {body["prompt"] for body in client.bodies} == {*workload.prompts}
    assert {(b["temperature"], b["max_tokens"], b["seed"]) for b in client.bodies} == {
        (0, workload.tokens, 0)
    }
    assert all(body["logprobs"] > 1 for body in client.bodies)
    words = [f"{prompt}|".split()[-1] for prompt in workload.prompts]
    assert [said.tokens[0] for said in told.answers] == words
    assert (told.problems, told.tokens, len(told.replies)) == ((), 2 * len(words), len(words))


def test_sample_asks_one_prompt_with_many_seeds() -> None:
    client = Keeping()
    told = ask(client, Work("sample", 0.8))
    workload = WORKLOADS["sample"]
    assert sorted(body["seed"] for body in client.bodies) == list(range(workload.times))
    assert {body["temperature"] for body in client.bodies} == {0.8}
    assert not any("logprobs" in body for body in client.bodies)
    assert len(told.answers) == workload.times >= 32


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_workloads_are_bounded(workload: Workload) -> None:
    """A slow machine makes ten tokens a second, and each launch is asked."""
    assert workload.tokens * workload.times * len(workload.prompts) <= 1024
    assert 1 < workload.at_once <= 4
    assert len(set(workload.prompts)) == len(workload.prompts)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reply("no", 500), "http-status"),
        (reply("{}"), "bad-shape"),
        (spoken("x").replace(MODEL.encode(), b"other"), "wrong-model"),
        (spoken(finish="stop"), "empty"),
        (spoken("x", finish="abort"), "finish-reason"),
        (spoken("x").replace(b"-0.1", b"NaN"), "nan-logprobs"),
    ],
)
def test_bad_answers_are_problems(answer: Script, code: str) -> None:
    told = ask(Keeping({"work/repeat": answer}), Work("repeat"))
    assert code in {problem.code for problem in told.problems}
    assert len(told.answers) == len(WORKLOADS["repeat"].prompts)


def test_a_sampled_answer_may_be_empty() -> None:
    client = Keeping({"work/sample": spoken(finish="stop")})
    assert ask(client, Work("sample", 0.8)).problems == ()


def test_after_silence_the_engine_is_asked_no_more() -> None:
    client = Keeping({"work/repeat": silence()})
    asker = Asker(client, Memory(), MODEL)
    told = run_workload(asker, Work("repeat"))
    assert {problem.code for problem in told.problems} == {"no-answer"}
    assert asker.dead
    asked = len(client.bodies)
    assert asked <= WORKLOADS["repeat"].at_once
    run_workload(asker, Work("repeat"))
    assert len(client.bodies) == asked


# ---- comparing -----------------------------------------------------------------------------------


def told(*answers: Said) -> Told:
    return Told(answers, (), (), 0, 0)


def said(*tokens: str, tops: Mapping[int, Mapping[str, float]] = {}) -> Said:
    places = tuple(tops.get(at, {token: -0.1}) for at, token in enumerate(tokens))
    return Said(text="".join(tokens), tokens=tokens, tops=places)


def codes(plain: Said, other: Said) -> list[str]:
    return [problem.code for problem in compare(told(plain), told(other))[0]]


def test_the_same_answers() -> None:
    one = told(said("a", "b"), said("c"))
    assert compare(one, one) == ([], "2 of 2 answers are the same")


def test_another_token() -> None:
    top = {1: {"b": -0.1, "x": -3.1}}
    problems, detail = compare(told(said("a", "b", "c", tops=top)), told(said("a", "x", "c")))
    assert [problem.code for problem in problems] == ["other-text"]
    assert problems[0].detail == (
        "answer 1 differs at token 1: 'x' for 'b', which was 3.000 less likely"
    )
    assert detail == "0 of 1 answers are the same"


def test_answers_may_part_at_a_tie() -> None:
    tie = {1: {"b": -1.0, "x": -1.125}}
    problems, detail = compare(told(said("a", "b", tops=tie)), told(said("a", "x")))
    assert problems == []
    assert detail == ("0 of 1 answers are the same; answer 1 parts at a tie ('b', 'x', 0.125)")


def test_what_is_a_tie() -> None:
    for margin, wanted in ((0.0, []), (TIE, []), (TIE + 0.01, ["other-text"])):
        top = {0: {"b": -1.0, "x": -1.0 - margin}}
        assert codes(said("b", tops=top), said("x")) == wanted
    # Not even among the likeliest; or nobody knows how likely.
    assert codes(said("b", tops={0: {"b": -1.0, "c": -1.0}}), said("x")) == ["other-text"]
    assert codes(said("b", tops={0: {}}), said("x")) == ["other-text"]


def test_an_answer_that_ends_early_is_another_one() -> None:
    for one, other in itertools.permutations((said("a"), said("a", "b"))):
        assert codes(one, other) == ["other-text"]


def test_the_same_tokens_with_another_text_are_no_same_answer() -> None:
    plain = said("a")
    assert codes(plain, Said(text="b", tokens=("a",))) == ["other-text"]
