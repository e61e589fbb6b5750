"""Verdicts never crash, whatever a server says."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.gate.ask import Answer
from kiln.gate.coherence import QUESTIONS, judge_answer
from kiln.gate.identity import Unreadable, parse_metrics
from kiln.gate.openai import Call, Said, read_chat, read_completion, read_stream
from kiln.gate.text import check_same
from kiln.gate.toolcall import Wanted, judge_calls, judge_no_call

TEXTS = st.text() | st.text(st.characters(codec=None, categories=None))  # lone surrogates too
NOISE = st.text("Ġ!<|>im_end[/INST]\n Ã©â€™東", max_size=300)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "message", "content", "tool_calls", "function", "arguments"),
                    *("name", "index", "id", "delta", "finish_reason", "logprobs", "model"),
                    "token_logprobs",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(TEXTS | NOISE | st.none(), TEXTS | st.none(), st.text() | st.none())
def test_any_text_gets_a_verdict(text: str | None, reasoning: str | None, finish: str) -> None:
    said = Said(model="m", text=text, reasoning=reasoning, finish=finish)
    for question in QUESTIONS[:2]:
        problems = judge_answer(question, said)
        assert problems or (text and question.answer.search(text))
    judge_no_call(said)


@given(TEXTS, TEXTS)
def test_any_two_texts_can_be_compared(first: str, second: str) -> None:
    assert check_same(first, first) == []
    assert bool(check_same(first, second)) == bool(check_same(second, first))


@given(
    st.lists(st.builds(Call, st.text(max_size=3), st.just("get_weather") | TEXTS, TEXTS | NOISE))
)
def test_any_calls_get_a_verdict(calls: list[Call]) -> None:
    assert judge_calls(Wanted("required"), Said(calls=tuple(calls)))  # no finish reason


def answer(body: bytes, events: tuple[bytes, ...] = ()) -> Answer:
    return Answer(200, "application/json", body, events, "")


@given(JSON)
@settings(max_examples=200)
def test_any_json_can_be_read(value: object) -> None:
    for body in (value, {"choices": [value]}, {"choices": [{"message": value, "delta": value}]}):
        data = json.dumps(body).encode()
        for reading in (
            read_chat(answer(data), logprobs=True),
            read_completion(answer(data)),
            read_stream(answer(b"", (data, data))),
        ):
            assert reading.problems


@given(st.binary())
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert read_chat(answer(data)).problems
    streamed = read_stream(answer(data, (data,)))
    # A stream may hold its end alone; then nothing was said, and that has its own verdict.
    assert streamed.problems or judge_no_call(streamed.said)


@given(st.text() | st.text('kiln_build_info{="} 1.0#\nHELPTYPE,\\\r'), st.booleans())
def test_any_page_parses_or_is_refused(text: str, openmetrics: bool) -> None:
    kind = "application/openmetrics-text" if openmetrics else "text/plain"
    try:
        samples = parse_metrics(text.encode("utf-8", "surrogatepass"), kind)
    except Unreadable:
        return
    assert samples
