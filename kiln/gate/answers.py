"""Putting a workload to a server, and comparing what two launches answer to it.

At temperature 0 the answers of two launches to one workload must be the same: speculation
changes the speed, not the text.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kiln.gate.ask import Asker, Unanswered
from kiln.gate.model import Problem, Work
from kiln.gate.openai import Said, read_completion
from kiln.gate.text import check_empty
from kiln.gate.workloads import WORKLOADS

# How far apart the logprobs of two tokens may be for either to win by rounding: logits of
# 16 to 32 are 1/8 apart in bfloat16, and each of the two can be off by one such step.
TIE = 0.25
_TOPS = 5  # likeliest tokens asked for, to know a tie when two answers differ


@dataclass(frozen=True)
class Told:
    """The answers to a workload, in its order. problems: of all of them."""

    answers: tuple[Said, ...]
    problems: tuple[Problem, ...]
    replies: tuple[str, ...]
    tokens: int
    milliseconds: int


def run_workload(asker: Asker, work: Work) -> Told:
    """Ask all prompts of a workload, several at a time. Does not raise: what did not come
    is a problem."""
    workload = WORKLOADS[work.workload]
    jobs = [(prompt, seed) for seed in range(workload.times) for prompt in workload.prompts]
    start = time.monotonic()
    with ThreadPoolExecutor(workload.at_once) as pool:
        found = [*pool.map(lambda job: _ask(asker, work, workload.tokens, *job), jobs)]
    taken = round((time.monotonic() - start) * 1000)
    problems = [problem for one in found for problem in one.problems]
    return Told(
        answers=tuple(one.said for one in found),
        problems=tuple(dict.fromkeys(problems)),
        replies=tuple(one.sha for one in found if one.sha),
        tokens=sum(one.tokens for one in found),
        milliseconds=taken,
    )


@dataclass(frozen=True)
class _One:
    said: Said
    problems: tuple[Problem, ...] = ()
    sha: str = ""
    tokens: int = 0


def _ask(asker: Asker, work: Work, tokens: int, prompt: str, seed: int) -> _One:
    body: dict[str, object] = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": work.temperature,
        "seed": seed,
    }
    greedy = work.temperature == 0
    if greedy:
        body["logprobs"] = _TOPS
    try:
        answer = asker.post("/v1/completions", body)
    except Unanswered as error:
        return _One(Said(), (Problem("no-answer", str(error)),))
    reading = read_completion(answer, logprobs=greedy)
    problems = list(reading.problems)
    if answer.status == 200:
        if greedy:  # a sampled answer may end at once
            problems += check_empty(reading.said.text, None)
        if reading.said.finish not in ("stop", "length"):
            problems.append(Problem("finish-reason", f"it ends with {reading.said.finish!r}"))
        if reading.said.model != asker.model:
            text = f"{reading.said.model!r} answered, not {asker.model!r}"
            problems.append(Problem("wrong-model", text))
    return _One(reading.said, tuple(problems), answer.sha, _generated(answer.json()))


def _generated(reply: object) -> int:
    """How many tokens the server says it made; 0 where it does not say."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


# ---- two launches, one text -----------------------------------------------------------------


def compare(plain: Told, told: Told) -> tuple[list[Problem], str]:
    """Whether a launch's greedy answers are those of another one; and what was seen.

    Answers may part where the plain launch's own logprobs show a tie (see TIE): then either
    token is right, and what follows it is another text.
    """
    problems, ties = [], []
    for number, (one, other) in enumerate(zip(plain.answers, told.answers, strict=True), 1):
        at = _parting(one, other)
        if at is None:
            continue
        wanted, found = _token(one, at), _token(other, at)
        margin = _margin(one, at, wanted, found)
        if margin is not None and margin <= TIE:
            ties.append(f"answer {number} parts at a tie ({wanted!r}, {found!r}, {margin:.3f})")
        else:
            known = "" if margin is None else f", which was {margin:.3f} less likely"
            text = f"answer {number} differs at token {at}: {found!r} for {wanted!r}{known}"
            problems.append(Problem("other-text", text))
    same = len(plain.answers) - len(problems) - len(ties)
    return problems, "; ".join([f"{same} of {len(plain.answers)} answers are the same", *ties])


def _parting(one: Said, other: Said) -> int | None:
    """The first token in which two answers differ; their end counts as one."""
    if (one.tokens, one.text) == (other.tokens, other.text):
        return None
    pairs = zip(one.tokens, other.tokens, strict=False)
    common = min(len(one.tokens), len(other.tokens))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), common)


def _token(said: Said, at: int) -> str:
    return said.tokens[at] if at < len(said.tokens) else "(its end)"


def _margin(plain: Said, at: int, wanted: str, found: str) -> float | None:
    """How much likelier the plain launch took its own token to be; None if it is unknown."""
    top = plain.tops[at] if at < len(plain.tops) else {}
    return top[wanted] - top[found] if wanted in top and found in top else None
