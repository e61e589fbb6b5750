"""Replies of an OpenAI-compatible server, read with suspicion.

Whatever a reply holds, reading it gives what was said and a list of problems; nothing is
taken for granted, and nothing raises. Shapes: the OpenAI API's "chat completion object",
"chat completion chunk object" and (legacy) "completion object".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kiln.gate.ask import Answer, is_bad_number, loads
from kiln.gate.model import Problem

_LOWEST = -9999.0  # what vLLM writes for minus infinity


@dataclass(frozen=True)
class Call:
    """One call of a tool, arguments as the text that came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    """What a model said. text, reasoning: None where null or absent. tokens: the
    logprobs' tokens, () where none were asked for. tops: for each of them the likeliest
    tokens in its place, with their logprobs (of a completion only)."""

    model: str = ""
    text: str | None = None
    reasoning: str | None = None
    finish: str | None = None
    calls: tuple[Call, ...] = ()
    tokens: tuple[str, ...] = ()
    tops: tuple[Mapping[str, float], ...] = ()


@dataclass
class Reading:
    """A reply being read: what was said so far, and what is wrong with it."""

    said: Said = field(default_factory=Said)
    problems: list[Problem] = field(default_factory=list)

    def bad(self, code: str, detail: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(code, detail))


def read_chat(answer: Answer, *, logprobs: bool = False) -> Reading:
    """A chat completion. logprobs: they were asked for, so they must be there."""
    reading = Reading()
    choice = _choice(answer, reading)
    if choice is None:
        return reading
    message = _dict(choice.get("message"))
    if not message:
        reading.bad("bad-shape", "the choice has no message")
    tokens: tuple[str, ...] = ()
    if logprobs:
        tokens = _chat_logprobs(choice, reading)
    reading.said = Said(
        model=_text(_dict(answer.json()).get("model")) or "",
        text=_content(message.get("content"), reading),
        reasoning=_text(message.get("reasoning")) or _text(message.get("reasoning_content")),
        finish=_text(choice.get("finish_reason")),
        calls=_calls(message.get("tool_calls"), reading),
        tokens=tokens,
    )
    return reading


def read_completion(answer: Answer, *, logprobs: bool = True) -> Reading:
    """A completion. logprobs: they were asked for, so they must be there."""
    reading = Reading()
    choice = _choice(answer, reading)
    if choice is None:
        return reading
    found = _dict(choice.get("logprobs"))
    if logprobs:
        _check_logprobs(_list(found.get("token_logprobs")), reading)
    reading.said = Said(
        model=_text(_dict(answer.json()).get("model")) or "",
        text=_content(choice.get("text"), reading),
        finish=_text(choice.get("finish_reason")),
        tokens=tuple(t for t in _list(found.get("tokens")) if isinstance(t, str)),
        tops=tuple(_numbers(top) for top in _list(found.get("top_logprobs"))),
    )
    return reading


def read_stream(answer: Answer) -> Reading:
    """A streamed chat completion, its deltas put together as the API says."""
    reading = Reading()
    if answer.status != 200:
        _bad_status(answer, reading)
        return reading
    if answer.events[-1:] != (b"[DONE]",):
        reading.bad("stream-cut", "the stream does not end with [DONE]")
    joined = _Joined(reading)
    model = ""
    for data in answer.events:
        if data == b"[DONE]":
            continue
        chunk = loads(data)
        if not isinstance(chunk, dict):
            reading.bad("not-json", f"an event is no JSON object: {data[:80]!r}")
        elif chunk.get("error"):
            reading.bad("stream-error", f"the stream carries an error: {data[:200]!r}")
        else:
            model = _text(chunk.get("model")) or model
            choices = _list(chunk.get("choices"))
            if len(choices) > 1:
                reading.bad("bad-shape", "a chunk has more than one choice")
            for choice in choices[:1]:
                joined.add(_dict(choice))
    reading.said = joined.said(model)
    return reading


class _Joined:
    """The deltas of one streamed choice, so far."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finish: str | None = None
        self._calls: list[Call] = []

    def add(self, choice: dict[str, Any]) -> None:
        delta = _dict(choice.get("delta"))
        calls = _list(delta.get("tool_calls"))
        text = _content(delta.get("content"), self._reading) or ""
        reasoning = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content")) or ""
        if self._finish is not None and (text or reasoning or calls):
            self._reading.bad("stream-order", "there is more after the finish reason")
        self._text.append(text)
        self._reasoning.append(reasoning)
        for call in calls:
            self._add_call(_dict(call))
        finish = choice.get("finish_reason")
        if finish is not None:
            if self._finish is not None:
                self._reading.bad("stream-order", "there is more than one finish reason")
            self._finish = _text(finish)

    def _add_call(self, delta: dict[str, Any]) -> None:
        """An index that follows the last begins a call, with id and name; each known one
        only adds to its arguments."""
        index, function = delta.get("index"), _dict(delta.get("function"))
        name, call_id = _text(function.get("name")), _text(delta.get("id"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            if arguments is not None:
                self._reading.bad("stream-call", "a delta's arguments are no string")
            arguments = ""
        if not isinstance(index, int) or isinstance(index, bool):
            self._reading.bad("stream-call", f"a call's index is {index!r}")
        elif index == len(self._calls):
            if not name or not call_id:
                self._reading.bad("stream-call", f"call {index} begins without name or id")
            self._calls.append(Call(call_id or "", name or "", arguments))
        elif 0 <= index < len(self._calls):
            known = self._calls[index]
            if name or (call_id and call_id != known.id):
                self._reading.bad("stream-call", f"call {index} is named more than once")
            self._calls[index] = Call(known.id, known.name, known.arguments + arguments)
        else:
            self._reading.bad("stream-call", f"call index {index} does not follow the last one")

    def said(self, model: str) -> Said:
        return Said(
            model=model,
            text="".join(self._text),
            reasoning="".join(self._reasoning) or None,
            finish=self._finish,
            calls=tuple(self._calls),
        )


def _choice(answer: Answer, reading: Reading) -> dict[str, Any] | None:
    if answer.status != 200:
        _bad_status(answer, reading)
        return None
    reply = answer.json()
    if not isinstance(reply, dict):
        reading.bad("not-json", f"the body is no JSON object: {answer.body[:80]!r}")
        return None
    choices = _list(reply.get("choices"))
    if len(choices) != 1 or not isinstance(choices[0], dict):
        reading.bad("bad-shape", f"{len(choices)} choices, not one")
        return None
    choice: dict[str, Any] = choices[0]
    return choice


def _bad_status(answer: Answer, reading: Reading) -> None:
    text = f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
    if b"JSON compliant" in answer.body:
        # Starlette refuses to write NaN: the server's way to say that logprobs are broken.
        reading.bad("nan-logprobs", text)
    else:
        reading.bad("http-status", text)


def _calls(value: object, reading: Reading) -> tuple[Call, ...]:
    calls = []
    for item in _list(value):
        call = _dict(item)
        function = _dict(call.get("function"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            reading.bad("bad-shape", f"a call's arguments are {type(arguments).__name__}")
            arguments = ""
        calls.append(
            Call(_text(call.get("id")) or "", _text(function.get("name")) or "", arguments)
        )
    return tuple(calls)


def _chat_logprobs(choice: dict[str, Any], reading: Reading) -> tuple[str, ...]:
    entries = [_dict(item) for item in _list(_dict(choice.get("logprobs")).get("content"))]
    _check_logprobs([entry.get("logprob") for entry in entries], reading)
    return tuple(_text(entry.get("token")) or "" for entry in entries)


def _check_logprobs(values: Sequence[object], reading: Reading) -> None:
    if not values:
        reading.bad("no-logprobs", "logprobs were asked for, and there are none")
    for at, value in enumerate(values):
        if is_bad_number(value) or not _LOWEST < float(value) < 0.01:  # type: ignore[arg-type]
            reading.bad("nan-logprobs", f"the logprob of token {at} is {value!r}")
            return


def _content(value: object, reading: Reading) -> str | None:
    if value is not None and not isinstance(value, str):
        reading.bad("bad-shape", f"the content is {type(value).__name__}, not text")
    return _text(value)


def _numbers(value: object) -> dict[str, float]:
    return {name: number for name, number in _dict(value).items() if not is_bad_number(number)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
