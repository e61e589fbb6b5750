"""Does the image call tools as the OpenAI API says: required and named, whole and streamed.

The tool's parameter is one of two codes that the prompt does not name. So the arguments
show whether the server held the model to the schema ("paris-fr") or let it write what it
likes ("Paris"), and the right one of the two shows that the model read the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kiln.gate.ask import Asker, Unanswered, loads
from kiln.gate.model import Case, Problem, case, not_run
from kiln.gate.openai import Call, Reading, Said, read_chat, read_stream
from kiln.gate.schema import check_schema
from kiln.gate.text import check_control_tokens, check_empty

WEATHER: Mapping[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["rome-it", "paris-fr"]}},
    "required": ["city"],
}
TIME: Mapping[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
PROMPT = "What is the weather in Paris?"
_RIGHT = re.compile(r"paris", re.IGNORECASE)
_TOKENS = 64

Judge: TypeAlias = Callable[[Said], list[Problem]]


@dataclass(frozen=True)
class Wanted:
    """A call that the request forces. choice: "required" or "named"."""

    choice: str
    name: str = "get_weather"

    @property
    def finishes(self) -> frozenset[str]:
        """OpenAI ends a forced, named call with "stop"; vLLM has done both."""
        return frozenset({"tool_calls"} if self.choice == "required" else {"tool_calls", "stop"})


def judge_calls(wanted: Wanted, said: Said) -> list[Problem]:
    """Everything that is wrong with the calls that were made."""
    problems = check_control_tokens(said.text or "", "")
    if said.finish == "length":
        problems.append(Problem("truncated", "the answer was cut at its length"))
    elif said.finish not in wanted.finishes:
        problems.append(Problem("finish-reason", f"it ends with {said.finish!r}"))
    if not said.calls:
        problems.append(Problem("no-call", f"no call, but {(said.text or '')[:120]!r}"))
    for call in said.calls:
        if call.name not in SCHEMAS:
            problems.append(Problem("wrong-name", f"it calls {call.name!r}, which no tool is"))
        else:
            problems += judge_arguments(call)
    if said.calls and said.calls[0].name in SCHEMAS and said.calls[0].name != wanted.name:
        problems.append(Problem("wrong-tool", f"it calls {said.calls[0].name!r}"))
    if len({call.id for call in said.calls if call.id}) != len(said.calls):
        problems.append(Problem("call-id", "a call has no id of its own"))
    # One city was asked for. `required` allows more calls than one, if they differ.
    if len(said.calls) > 1 and (wanted.choice == "named" or _repeats(said.calls)):
        problems.append(Problem("extra-call", f"{len(said.calls)} calls, not one"))
    return problems


def judge_arguments(call: Call) -> list[Problem]:
    """Whether a call's arguments are JSON, fit the schema, and name the right city."""
    value = loads(call.arguments)
    if value is None:
        return [Problem("arguments-not-json", f"the arguments are {call.arguments[:120]!r}")]
    if isinstance(value, str):
        inner = "double-encoded" if isinstance(loads(value), dict) else "bare-string"
        if inner == "bare-string" and not _RIGHT.search(value):
            inner = "value"
        return [Problem(f"arguments-{inner}", f"the arguments are the string {value[:120]!r}")]
    problems = check_schema(value, SCHEMAS[call.name])
    if call.name == "get_weather" and isinstance(value, dict):
        city = value.get("city")
        if isinstance(city, str) and not _RIGHT.search(city):
            problems.append(Problem("arguments-value", f"the city is {city!r}, not Paris"))
    return problems


def judge_no_call(said: Said) -> list[Problem]:
    """A prompt that needs no tool: an answer, no call, and no markup."""
    problems = check_empty(said.text, said.reasoning)
    problems += check_control_tokens(said.text or "", "")
    if said.calls:
        problems.append(Problem("phantom-call", f"it calls {said.calls[0].name!r} unasked"))
    if said.finish not in ("stop", "length"):
        problems.append(Problem("finish-reason", f"it ends with {said.finish!r}"))
    return problems


def run_toolcall(asker: Asker, *, auto: bool) -> list[Case]:
    """All cases. auto: the preset lets the model choose, so that is judged too."""
    cases = []
    for choice in ("required", "named"):
        for mode in ("full", "stream"):
            for strict in (True, False):
                name = f"toolcall/{choice}/{mode}/{'strict' if strict else 'plain'}"
                cases.append(_forced(asker, name, Wanted(choice), mode, strict=strict))
    for choice in ("none", "auto") if auto else ("none",):
        for mode in ("full", "stream"):
            cases.append(_needless(asker, f"toolcall/{choice}/{mode}", choice, mode))
    cases.append(_history(asker))
    return cases


def _tool(name: str, description: str, *, strict: bool) -> dict[str, object]:
    function = {"name": name, "description": description, "parameters": SCHEMAS[name]}
    return {"type": "function", "function": function | ({"strict": True} if strict else {})}


def _tools(*, strict: bool = False) -> list[dict[str, object]]:
    return [
        _tool("get_weather", "Current weather", strict=strict),
        _tool("get_time", "Current time", strict=strict),
    ]


def _ask(
    asker: Asker, mode: str, messages: Sequence[object], more: Mapping[str, object]
) -> tuple[Reading, list[str]]:
    """Raises Unanswered."""
    body = {"messages": messages, "temperature": 0, "seed": 0, "max_tokens": _TOKENS, **more}
    if mode == "stream":
        answer = asker.stream("/v1/chat/completions", body)
        reading = read_stream(answer)
    else:
        answer = asker.post("/v1/chat/completions", body)
        reading = read_chat(answer)
    if answer.status == 200 and reading.said.model != asker.model:
        reading.bad("wrong-model", f"{reading.said.model!r} answered, not {asker.model!r}")
    return reading, [answer.sha]


def _forced(asker: Asker, name: str, wanted: Wanted, mode: str, *, strict: bool) -> Case:
    named = {"type": "function", "function": {"name": wanted.name}}
    choice = "required" if wanted.choice == "required" else named
    more = {"tools": _tools(strict=strict), "tool_choice": choice}
    return _judged(asker, name, mode, [_user(PROMPT)], more, lambda said: judge_calls(wanted, said))


def _needless(asker: Asker, name: str, choice: str, mode: str) -> Case:
    more = {"tools": _tools(), "tool_choice": choice}
    prompt = "What is the capital of France?"
    return _judged(asker, name, mode, [_user(prompt)], more, judge_no_call)


def _history(asker: Asker) -> Case:
    """A second turn, with the first call sent back as the API gave it: arguments a string,
    where some templates want an object."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "paris-fr"}'},
    }
    messages = [
        _user(PROMPT),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
        # What a small model makes of the result says little; that it can still answer
        # behind such a history says that the history was rendered.
        {"role": "assistant", "content": "It is sunny in Paris, at 21 degrees."},
        _user("What is the capital of France?"),
    ]
    more = {"tools": _tools(), "tool_choice": "none"}
    return _judged(asker, "toolcall/history/full", "full", messages, more, _judge_history)


def _judge_history(said: Said) -> list[Problem]:
    problems = judge_no_call(said)
    if not re.search(r"\bParis\b", said.text or ""):
        problems.append(Problem("wrong-answer", f"Paris is not in {(said.text or '')[:120]!r}"))
    return problems


def _judged(
    asker: Asker,
    name: str,
    mode: str,
    messages: Sequence[object],
    more: Mapping[str, object],
    judge: Judge,
) -> Case:
    if asker.dead:
        return not_run(name, asker.dead)
    try:
        reading, replies = _ask(asker, mode, messages, more)
    except Unanswered as error:
        return case(name, [Problem("no-answer", str(error))])
    problems = list(reading.problems)
    if not any(problem.code == "http-status" for problem in problems):
        problems += judge(reading.said)
    calls = [f"{call.name}({call.arguments})" for call in reading.said.calls]
    detail = ", ".join(calls) or repr((reading.said.text or "")[:120])
    return case(name, problems, f"{detail}, {reading.said.finish}", replies)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _repeats(calls: Sequence[Call]) -> bool:
    return len({(call.name, call.arguments) for call in calls}) < len(calls)
