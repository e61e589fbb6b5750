"""The coherence gate against a scripted server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kiln.gate.ask import Asker
from kiln.gate.coherence import QUESTIONS, Question, judge_answer, run_coherence
from kiln.gate.model import Case
from kiln.gate.openai import Said
from tests.helpers.fake_openai import (
    MODEL,
    FakeClient,
    Memory,
    Script,
    calls,
    chat,
    completion,
    reply,
    silence,
)


def run(scripts: Mapping[str, Script], blobs: Memory | None = None) -> dict[str, Case]:
    cases = run_coherence(Asker(FakeClient(scripts), blobs or Memory(), MODEL))
    return {case.id.removeprefix("coherence/"): case for case in cases}


def codes(text: str | None, question: Question = QUESTIONS[0], **said: object) -> set[str]:
    known = {"model": MODEL, "text": text, "finish": "stop"} | said
    return {problem.code for problem in judge_answer(question, Said(**known))}  # type: ignore[arg-type]


def test_the_real_server_passes() -> None:
    cases = run({})
    assert {case.verdict for case in cases.values()} == {"pass"}
    assert len(cases) == len(QUESTIONS) + 1
    assert "Paris" in cases["france"].detail


def test_each_exchange_is_kept_with_its_question() -> None:
    blobs = Memory()
    (sha,) = run({}, blobs)["france"].replies
    kept = json.loads(blobs.kept[sha])
    assert "capital of France" in kept["request"]
    assert "Paris" in kept["body"]
    assert kept["status"] == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (chat("!!!!!!!!!!!!!!!!"), "repetition"),
        (chat(""), "empty"),
        (chat(None), "empty"),
        (chat("\n\n"), "empty"),
        (chat(None, reasoning="Paris is the capital."), "answer-in-reasoning"),
        (chat("", reasoning_content="Paris is the capital."), "answer-in-reasoning"),
        (chat("TheĠcapitalĠisĠParis."), "byte-symbols"),
        (chat("Par\ufffdis Paris"), "replacement-character"),
        (chat("Paris<|im_end|>"), "control-tokens"),
        (chat("assistant\n\nParis"), "control-tokens"),
        (chat("Paris 東京 Москва مرحبا"), "mixed-scripts"),
        (chat("London."), "wrong-answer"),
        (chat("Paris \n" * 1_000_000), "too-long"),
        (chat("Paris.", finish="tool_calls"), "finish-reason"),
        (chat("Paris.", model="another"), "wrong-model"),
        (chat(["Paris"]), "bad-shape"),
        (calls(("get_weather", "{}"), content="Paris"), "phantom-call"),
        (b"<html>Paris</html>", "not-json"),
        (b"\xff\xfe", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b"{}", "bad-shape"),
        (b'{"choices": [{}]}', "bad-shape"),
        (b'{"choices": [null]}', "bad-shape"),
        (reply("overloaded", 503), "http-status"),
        (reply("Out of range float values are not JSON compliant: nan", 500), "nan-logprobs"),
    ],
)
def test_a_bad_answer_fails(body: Script, code: str) -> None:
    case = run({"coherence/japan": chat("Tokyo"), "coherence/france": body})["france"]
    assert case.verdict == "fail"
    assert code in case.problems


@pytest.mark.parametrize(
    "value", ["9" * 400, "NaN", "null", "Infinity", "-9999.0", '"x"', "true", "1e999"]
)
def test_a_logprob_that_is_none_fails(value: str) -> None:
    body = chat("Paris.").replace(b"-0.1", value.encode())
    assert run({"coherence/france": body})["france"].problems == ("nan-logprobs",)
    text = completion(" 6, 7, 8").replace(b"-0.1", value.encode())
    assert run({"coherence/count": text})["count"].problems == ("nan-logprobs",)


def test_missing_logprobs_fail() -> None:
    body = completion(" 6, 7, 8", logprobs=())
    assert run({"coherence/count": body})["count"].problems == ("no-logprobs",)


def test_a_poisoned_server_is_told_from_a_bad_one() -> None:
    cases = run({"coherence/cat": chat("!!!!!!!!"), "coherence/again": chat("!!!!!!!!")})
    assert cases["cat"].verdict == "fail"
    assert "poisoned" in cases["again"].problems
    recovered = run({"coherence/cat": chat("!!!!!!!!")})
    assert recovered["again"].verdict == "pass"


def test_a_first_answer_that_was_bad_poisons_nothing() -> None:
    cases = run({"coherence/france": chat("London."), "coherence/again": chat("London.")})
    assert "poisoned" not in cases["again"].problems
    assert cases["again"].verdict == "fail"


def test_another_right_answer_is_not_the_same() -> None:
    case = run({"coherence/again": chat("Paris, of course, is what you mean.")})["again"]
    assert case.problems == ("not-the-same", "poisoned")


def test_after_silence_nothing_more_is_asked() -> None:
    cases = run({"coherence/japan": silence()})
    assert cases["japan"].problems == ("no-answer",)
    assert {cases[q.name].verdict for q in QUESTIONS[2:]} == {"not-run"}
    assert cases["again"].verdict == "not-run"


def test_right_answers_pass() -> None:
    assert codes("The capital of France is Paris.") == set()
    assert codes("Stop!!! It is Paris!!!") == set()
    assert codes("Paris", finish="length") == set()


def test_good_tokens_then_noise_fail() -> None:
    good = "The capital of France is Paris, which lies on the river Seine in the north. "
    assert "mixed-scripts" in codes(good + "प्र 東京 Москва عر ที่ 안녕 ну")


def test_a_question_about_symbols_or_scripts_may_be_answered() -> None:
    about = replace(QUESTIONS[0], prompt="What is Ġ?", answer=re.compile("blank"))
    assert codes("A blank: theĠword", about) == set()
    japanese = replace(QUESTIONS[0], answer=re.compile("パリ"), scripts=frozenset({"LATIN", "CJK"}))
    assert codes("フランスの首都はパリです。", japanese) == set()
    markup = replace(QUESTIONS[0], answer=re.compile("im_end"), about_markup=True)
    assert codes("ChatML ends turns with <|im_end|>.", markup) == set()


def test_the_real_tokenizer_failure_fails() -> None:
    """measured.md: served under transformers 5 with the wrong class, all HTTP fine."""
    assert "byte-symbols" in codes("TheĠcapitalĠofĠFranceĠisĠParis.Ċ")
