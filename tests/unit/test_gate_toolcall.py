"""The tool-call gate: real replies, and the faults of hard inputs G6."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kiln.gate.ask import Asker
from kiln.gate.known_bad import apply_known_bad
from kiln.gate.model import Case
from kiln.gate.schema import check_schema
from kiln.gate.toolcall import run_toolcall
from tests.helpers.fake_openai import (
    MODEL,
    RECORDED,
    FakeClient,
    Memory,
    Script,
    calls,
    chat,
    events,
    reply,
    silence,
)

RIGHT = '{"city": "paris-fr"}'
FULL, STREAM = "toolcall/required/full/strict", "toolcall/required/stream/strict"
NAMED = "toolcall/named/full/strict"
PLAIN = [f"toolcall/{c}/{m}/plain" for c in ("required", "named") for m in ("full", "stream")]


def run(scripts: Mapping[str, Script], auto: bool = True) -> dict[str, Case]:
    asker = Asker(FakeClient(scripts), Memory(), MODEL)
    return {case.id: case for case in run_toolcall(asker, auto=auto)}


def problems(case: str, body: Script) -> set[str]:
    return set(run({case: body})[case].problems)


def start(arguments: str = "", index: int = 0, name: str = "get_weather", id: str = "c0") -> Any:
    call = {"index": index, "id": id, "type": "function"}
    return {"tool_calls": [call | {"function": {"name": name, "arguments": arguments}}]}


def more(arguments: str, index: object = 0) -> Any:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


# ---- the real server ---------------------------------------------------------------------------


def test_the_real_server_holds_strict_tools_to_their_schema() -> None:
    cases = run({})
    assert {case.verdict for name, case in cases.items() if name not in PLAIN} == {"pass"}
    assert "get_weather" in cases[FULL].detail
    assert len(cases) == 8 + 4 + 1


def test_its_known_fault_is_known_and_nothing_else() -> None:
    cases = run({})
    assert {cases[name].problems for name in PLAIN} == {("arguments-enum",)}
    known = apply_known_bad(list(cases.values()), "0.32.0+cpu")
    assert {case.id for case in known if case.verdict == "known-bad"} == set(PLAIN)
    assert not [case for case in known if case.verdict == "fail"]


def test_another_version_has_no_excuse() -> None:
    for version in ("0.23.0", "0.33.0", "not a version"):
        judged = apply_known_bad(list(run({}).values()), version)
        assert {case.id for case in judged if case.verdict == "fail"} == set(PLAIN)


def test_without_auto_only_what_the_preset_enables_is_asked() -> None:
    assert not [name for name in run({}, auto=False) if "/auto/" in name]


# ---- known-bad, healed, new-bad ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (calls(("get_weather", '"Paris"')), "known-bad"),  # the bare string of measured.md
        (calls(("get_weather", '{"city": "Paris"}')), "known-bad"),
        (calls(("get_weather", RIGHT)), "healed"),
        (calls(("get_weather", '"London"')), "fail"),
        (calls(("get_weather", '{"city": "London"}')), "fail"),
        (calls(("get_weather", "{}")), "fail"),  # T22: arguments lost silently
        (calls(("get_weather", '{"city": 5}')), "fail"),
        (calls(("get_weather", json.dumps('{"city": "Paris"}'))), "fail"),  # T6
        (calls(("get_weather", '"Paris"'), finish="length"), "fail"),
        (calls(("get_weather", '"Paris"'), content="<tool_call>"), "fail"),
        (calls(), "fail"),
    ],
)
def test_only_the_known_shape_is_excused(body: bytes, verdict: str) -> None:
    (case,) = apply_known_bad([run({PLAIN[0]: body})[PLAIN[0]]], "0.32.0+cpu")
    assert case.verdict == verdict
    assert case.reason


def test_the_known_shape_in_another_case_is_new() -> None:
    found = run({FULL: calls(("get_weather", '"Paris"'))})[FULL]
    assert apply_known_bad([found], "0.32.0+cpu")[0].verdict == "fail"


# ---- whole replies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (calls(), "no-call"),  # T44: finish reason tool_calls, empty list
        (chat("It is sunny in Paris."), "no-call"),
        (calls(("get_weather", RIGHT), finish="stop"), "finish-reason"),
        (calls(("weather", RIGHT)), "wrong-name"),
        (calls(("", RIGHT)), "wrong-name"),  # T39
        (calls(("get_time", '{"zone": "x"}')), "wrong-tool"),
        (calls(("get_weather", '{"city": "rome-it"}')), "arguments-value"),
        (calls(("get_weather", json.dumps(RIGHT))), "arguments-double-encoded"),  # T6
        (calls(("get_weather", "")), "arguments-not-json"),
        (calls(("get_weather", '{"city": "Os'), finish="length"), "truncated"),  # T10
        (calls(("get_weather", '{"city": "a\nb"}')), "arguments-not-json"),  # T11
        (calls(("get_weather", RIGHT + "}")), "arguments-not-json"),  # T21
        (calls(("get_weather", "null")), "arguments-not-json"),  # T30
        (calls(("get_weather", '"Paris"')), "arguments-bare-string"),
        (calls(("get_weather", "[]")), "arguments-type"),
        (calls(("get_weather", RIGHT), content="<tool_call>\n"), "control-tokens"),
        (calls(("get_weather", RIGHT), content="</function>"), "control-tokens"),
        (calls(("get_weather", RIGHT), ("get_weather", RIGHT)), "extra-call"),
        (calls(("get_weather", RIGHT), ("", "")), "wrong-name"),  # T21: a phantom call
        (calls(("get_weather", RIGHT), model="another"), "wrong-model"),
        (calls(("get_weather", RIGHT)).replace(b'"call-0"', b'""'), "call-id"),
        (
            chat("", tool_calls=[{"id": "a", "function": {"name": "get_weather"}}]),
            "bad-shape",
        ),  # T9
        (chat("", tool_calls="get_weather"), "no-call"),
        (reply('{"error": {"message": "bad"}}', 400), "http-status"),
        (b"", "not-json"),
    ],
)
def test_a_bad_call_fails(body: Script, code: str) -> None:
    assert code in problems(FULL, body)


def test_prose_beside_a_call_passes() -> None:
    """T12: content may stand beside the call."""
    assert problems(FULL, calls(("get_weather", RIGHT), content="Sure. Done.")) == set()


def test_required_allows_a_second_call_that_is_another_one() -> None:
    body = calls(("get_weather", RIGHT), ("get_time", '{"zone": "Europe/Paris"}'))
    assert problems(FULL, body) == set()
    assert problems(NAMED, body) == {"extra-call"}


def test_a_named_call_may_end_either_way() -> None:
    for finish in ("stop", "tool_calls"):
        assert problems(NAMED, calls(("get_weather", RIGHT), finish=finish)) == set()


def test_after_silence_nothing_more_is_asked() -> None:
    cases = run({FULL: silence()})
    assert cases[FULL].problems == ("no-answer",)
    assert {case.verdict for name, case in cases.items() if name != FULL} == {"not-run"}


# ---- streams -----------------------------------------------------------------------------------


def test_deltas_are_put_together() -> None:
    role = {"role": "assistant", "content": ""}
    body = events(role, start(), more('{"city": '), more('"paris-fr"'), more("}"))
    assert problems(STREAM, body) == set()
    assert problems(STREAM, events(role, start(RIGHT))) == set()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (events(start(RIGHT), done=False), "stream-cut"),
        (events(start("{"), start(RIGHT[1:])), "stream-call"),  # named twice
        (events(start("{", id=""), more(RIGHT[1:])), "stream-call"),
        (events(start(RIGHT, name="")), "stream-call"),
        (events(start(RIGHT, index=1)), "stream-call"),
        (events(start("{"), more(RIGHT[1:], index=2)), "stream-call"),
        (events(start("{"), more(RIGHT[1:], index=-1)), "stream-call"),
        (events(start("{"), more(RIGHT[1:], index=None)), "stream-call"),
        (events(start("{"), more(RIGHT[1:], index=True)), "stream-call"),
        (events(start(RIGHT), start("", index=1, name="", id="")), "wrong-name"),  # T21
        (events(start('{"city": "Os'), finish="length"), "truncated"),  # T10
        (events(start(RIGHT), {"content": "<tool_call>"}), "control-tokens"),
        (events(), "no-call"),
        (events({"content": "Use the "}, finish="stop"), "no-call"),
        (b'data: {"error": {"message": "boom"}}\n\ndata: [DONE]\n\n', "stream-error"),
        (b"data: {\n\ndata: [DONE]\n\n", "not-json"),
        (b"", "stream-cut"),
        (reply("no", 500), "http-status"),
    ],
)
def test_a_bad_stream_fails(body: Script, code: str) -> None:
    assert code in problems(STREAM, body)


def test_nothing_may_follow_the_finish_reason() -> None:
    body = events(start(RIGHT), done=False) + events({"content": "more"})
    assert "stream-order" in problems(STREAM, body)


# ---- no call needed ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["toolcall/none/full", "toolcall/auto/full"])
def test_an_answer_without_a_call_passes(case: str) -> None:
    """T49: the checker itself must not see calls where there are none."""
    assert problems(case, chat("Paris.")) == set()
    assert problems(case, chat('{"answer": 42}')) == set()


def test_unasked_calls_and_leaks_fail() -> None:
    case = "toolcall/auto/full"
    made = calls(("get_weather", RIGHT), content="Paris")
    assert problems(case, made) == {"phantom-call", "finish-reason"}
    assert problems(case, chat('<tool_call>{"name"')) == {"control-tokens"}
    assert problems(case, chat("")) == {"empty"}
    streamed = events(start(RIGHT))
    assert "phantom-call" in problems("toolcall/auto/stream", streamed)


def test_a_history_that_does_not_render_fails() -> None:
    """T47: the first call comes back with its arguments as a string."""
    case = "toolcall/history/full"
    sent = RECORDED[case]["request"]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(sent, str)
    assert problems(case, reply("template error", 500)) == {"http-status"}
    assert problems(case, chat("I do not know.")) == {"wrong-answer"}
    assert problems(case, chat("<tool_response>Paris")) == {"control-tokens"}
    assert problems(case, chat("It is Paris.")) == set()


# ---- the schema subset -------------------------------------------------------------------------


def test_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    }

    def codes(value: object) -> set[str]:
        return {problem.code for problem in check_schema(value, schema)}

    assert codes({"n": 1, "b": True}) == set()
    assert codes({"n": True}) == {"arguments-type"}
    assert codes({"b": False}) == {"arguments-missing"}
    assert codes({"n": 1, "x": 1}) == {"arguments-extra"}
    assert codes([1]) == {"arguments-type"}
    with pytest.raises(ValueError, match="pattern"):
        check_schema("x", {"type": "string", "pattern": "x"})
