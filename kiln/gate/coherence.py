"""Does the image speak sense: fixed greedy questions with answers that are known.

HTTP 200 proves nothing: broken kernels, weights, tokenizers and templates all serve
fluently. So each answer must be right, besides being sane (kiln/gate/text.py), and the
first question is asked again at the end: a poisoned server goes on answering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kiln.gate.ask import Answer, Asker, Unanswered
from kiln.gate.model import Case, Problem, case, not_run
from kiln.gate.openai import Reading, Said, read_chat, read_completion
from kiln.gate.text import (
    check_byte_symbols,
    check_characters,
    check_control_tokens,
    check_empty,
    check_repetition,
    check_same,
    check_scripts,
)

_LATIN = frozenset({"LATIN"})
_CHARACTERS = 128  # of one token, at most: some vocabularies have tokens of many blanks


@dataclass(frozen=True)
class Question:
    """One prompt, and what a sane answer to it looks like.

    kind: "chat" or "completion". answer: a pattern that the text must hold. scripts:
    Unicode's names of those that the prompt calls for. about_markup, about_symbols: the
    prompt asks about control tokens, or about a tokenizer's symbols. finishes: with
    which reasons it may end.
    """

    name: str
    kind: str
    prompt: str
    answer: re.Pattern[str]
    tokens: int = 24
    scripts: frozenset[str] = _LATIN
    about_markup: bool = False
    about_symbols: bool = False
    finishes: frozenset[str] = field(default=frozenset({"stop", "length"}))


def _question(name: str, kind: str, prompt: str, answer: str, tokens: int = 24) -> Question:
    return Question(name, kind, prompt, re.compile(answer, re.IGNORECASE), tokens)


# SmolLM2-135M-Instruct answers each of these with a wide margin, and so does any larger
# model. The first one is asked again at the end, and must be one of the surest.
QUESTIONS = (
    _question("france", "chat", "What is the capital of France?", r"\bParis\b"),
    _question("japan", "chat", "What is the capital of Japan?", r"\bTokyo\b"),
    _question("week", "chat", "How many days are in a week?", r"\b(7|seven)\b"),
    _question("january", "chat", "What is the first month of the year?", r"\bJanuary\b"),
    _question("cat", "chat", "Which animal says meow?", r"\bcats?\b"),
    _question("count", "completion", "1, 2, 3, 4, 5,", r"\A\s*6, 7, 8", 8),
    _question("paris", "completion", "The capital of France is", r"\A\s*Paris\b", 4),
)


def judge_answer(question: Question, said: Said) -> list[Problem]:
    """Everything that is wrong with what was said to a question."""
    problems = check_empty(said.text, said.reasoning)
    if said.finish not in question.finishes:
        problems.append(Problem("finish-reason", f"it ends with {said.finish!r}"))
    if said.calls:
        problems.append(Problem("phantom-call", f"it calls {said.calls[0].name!r} unasked"))
    longest = _CHARACTERS * question.tokens
    if len(said.text or "") > longest:
        text = f"{len(said.text or '')} characters from {question.tokens} tokens"
        problems.append(Problem("too-long", text))
    text = (said.text or "")[:longest]
    if not text.strip():
        return problems
    problems += check_repetition(text)
    if not question.about_symbols and not set("ĠĊ") & set(question.prompt):
        problems += check_byte_symbols(text)
    problems += check_characters(text)
    problems += check_scripts(text, question.scripts)
    problems += check_control_tokens(text, question.prompt, about=question.about_markup)
    if not question.answer.search(text):
        problems.append(
            Problem("wrong-answer", f"{text[:120]!r} does not hold {question.answer.pattern!r}")
        )
    return problems


def run_coherence(asker: Asker) -> list[Case]:
    """Ask all questions, then the first one again."""
    cases: list[Case] = []
    first: Said | None = None
    for question in QUESTIONS:
        found, said = _ask(asker, question, f"coherence/{question.name}")
        cases.append(found)
        first = first or said if question is QUESTIONS[0] else first
    cases.append(_again(asker, first))
    return cases


def _again(asker: Asker, first: Said | None) -> Case:
    """The same answer after all others, be they good or bad."""
    name = "coherence/again"
    if first is None:
        return not_run(name, "the first question had no answer to compare with")
    found, said = _ask(asker, QUESTIONS[0], name)
    if said is None:
        return found
    problems = [*judge_answer(QUESTIONS[0], said), *check_same(first.text or "", said.text or "")]
    if problems and not judge_answer(QUESTIONS[0], first):
        problems.append(Problem("poisoned", "it was good before the questions in between"))
    return case(name, problems, found.detail, found.replies)


def _ask(asker: Asker, question: Question, name: str) -> tuple[Case, Said | None]:
    if asker.dead:
        return not_run(name, asker.dead), None
    body: dict[str, object] = {"temperature": 0, "seed": 0, "max_tokens": question.tokens}
    try:
        if question.kind == "chat":
            message = {"role": "user", "content": question.prompt}
            body |= {"messages": [message], "logprobs": True}
            answer = asker.post("/v1/chat/completions", body)
            reading = read_chat(answer, logprobs=True)
        else:
            body |= {"prompt": question.prompt, "logprobs": 1}
            answer = asker.post("/v1/completions", body)
            reading = read_completion(answer)
    except Unanswered as error:
        return case(name, [Problem("no-answer", str(error))]), None
    return _case(asker, question, name, answer, reading), reading.said


def _case(asker: Asker, question: Question, name: str, answer: Answer, reading: Reading) -> Case:
    problems = list(reading.problems)
    if answer.status == 200:
        problems += judge_answer(question, reading.said)
        if reading.said.model != asker.model:
            problems.append(
                Problem("wrong-model", f"{reading.said.model!r} answered, not {asker.model!r}")
            )
    detail = repr((reading.said.text or "")[:120])
    return case(name, problems, detail, [answer.sha])
