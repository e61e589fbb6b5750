"""Sane text, and the ways in which it is not (hard inputs C1, C3, C4, C7)."""

from __future__ import annotations

import pytest

from kiln.gate.model import Problem
from kiln.gate.text import (
    check_byte_symbols,
    check_characters,
    check_control_tokens,
    check_empty,
    check_repetition,
    check_same,
    check_scripts,
)

LATIN = frozenset({"LATIN"})


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems}


@pytest.mark.parametrize("text", [None, "", "  ", "\n\n", "\u00a0"])
def test_nothing_said_is_empty(text: str | None) -> None:
    assert codes(check_empty(text, None)) == {"empty"}


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_an_answer_in_the_reasoning_is_told_apart(text: str | None) -> None:
    assert codes(check_empty(text, "The answer is 4.")) == {"answer-in-reasoning"}


def test_blank_reasoning_is_no_answer() -> None:
    assert codes(check_empty("", " \n")) == {"empty"}


@pytest.mark.parametrize(
    "text",
    [
        "!!!!!!!!!!!!!!!!",
        "!!!!",
        "The answer is aaaaaaaaaaaaaaaa",
        "Paris!!!!!!!!!!!!",
        "ParisParisParisParisParisParisParisParisParis",
        "the cat sat on the mat. " * 6,
        "I am. I am. I am. I am. I am. I am. I am. I am. I am. I am. ",
        "yes no " * 20,
        " ".join(["one two three four five six seven"] * 5 + ["and then"]),
        "good words come first and then " + "東京" * 25,
    ],
)
def test_repetition_collapse(text: str) -> None:
    assert codes(check_repetition(text)) == {"repetition"}


@pytest.mark.parametrize(
    "text",
    [
        "Stop!!!",
        "4",
        "44",
        "aaa",
        "1000000000000",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "Title\n" + "=" * 60,
        "| a | b |\n| --- | --- |\n| 1 | 2 |",
        "Nooooo way",
        "No, no, no, no!",
        "The quick brown fox jumps over the lazy dog while the other animals watch from "
        "the shade of the old oak tree that stands beside the river and the mill.",
    ],
)
def test_honest_repetition_passes(text: str) -> None:
    assert check_repetition(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "TheĠcapitalĠofĠFranceĠisĠParis.",
        "ĠParis",
        "Hello.Ċ",
        "HelloĊĊworld",
        "ĠĠĠ",
        "Itâ€™s Paris",
        "The cafÃ© is open",
        "quote âĢľhereâĢĿ",
    ],
)
def test_undecoded_bytes(text: str) -> None:
    assert codes(check_byte_symbols(text)) == {"byte-symbols"}


@pytest.mark.parametrize(
    "text",
    [
        "The café is open: “yes” naïve, 東京, 😀",
        "Ġorġ lives in Ċirkewwa",  # Maltese
        "REĠISTRU",
        "São Paulo, ÇÃO",
    ],
)
def test_decoded_text_passes(text: str) -> None:
    assert check_byte_symbols(text) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Par\ufffdis", "replacement-character"),
        ("Paris\x00", "odd-characters"),
        ("Paris\ue000", "odd-characters"),
        ("Paris\x1b[0m", "odd-characters"),
        ("Paris\uffff", "odd-characters"),
    ],
)
def test_characters_that_no_text_has(text: str, code: str) -> None:
    assert codes(check_characters(text)) == {code}


def test_line_breaks_and_emoji_are_characters() -> None:
    assert check_characters("one\r\n\ttwo 😀 👩\u200d💻") == []


@pytest.mark.parametrize(
    "text",
    [
        "The Pariж שלום 東京 안녕 answer",
        "A good English sentence that goes on for quite a while, and then "
        "привет 東京 สวัสดี مرحبا noise",
        "Столица Франции Париж",
        "The capital of France is Paris, привет and then 東京 which is a fine old town.",
    ],
)
def test_mixed_scripts(text: str) -> None:
    assert codes(check_scripts(text, LATIN)) == {"mixed-scripts"}


def test_marks_without_letters_are_noise() -> None:
    text = "The capital is Paris and then }{;;(( )]]$%^ &*(){}|:<>? !@#$%^&*( )_+{}|:<>?~`[]"
    assert codes(check_scripts(text, LATIN)) == {"noise"}


@pytest.mark.parametrize(
    "text", ["Tokyo (東京, とうきょう) is the capital of Japan.", "π is about 3.14", "µ and ª", "4"]
)
def test_a_word_in_another_script_passes(text: str) -> None:
    assert check_scripts(text, LATIN) == []


def test_a_translation_may_be_in_the_script_asked_for() -> None:
    text = "フランスの首都はパリです。美しい街です。"
    assert check_scripts(text, LATIN | {"CJK"}) == []
    assert codes(check_scripts(text, LATIN)) == {"mixed-scripts"}


@pytest.mark.parametrize(
    "text",
    [
        "4 [/INST] [INST] What is",
        "4<|im_end|>\n<|im_start|>user",
        "assistant\n\n4",
        "4\nuser\nWhat is 3 + 3?",
        "4</s>",
        "4<end_of_turn>",
        "4<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<think>hm</think>4",
        "<<SYS>> 4",
        "### Response: 4",
        '<tool_call>{"name": "x"}',
        "<|python_tag|>now()",
    ],
)
def test_template_markup_fails_even_with_the_right_answer(text: str) -> None:
    assert codes(check_control_tokens(text, "What is 2 + 2?")) == {"control-tokens"}


def test_markup_of_the_prompt_may_come_back() -> None:
    prompt = "What does <|im_end|> mean in ChatML?"
    assert check_control_tokens("<|im_end|> ends a turn.", prompt) == []
    assert codes(check_control_tokens("It ends a turn.<|im_start|>", prompt)) == {"control-tokens"}


def test_a_question_about_markup_may_be_answered() -> None:
    text = "ChatML ends a turn with <|im_end|>."
    assert check_control_tokens(text, "How does ChatML end a turn?", about=True) == []


@pytest.mark.parametrize("text", ["Use a < b and c > d", "[1, 2] <b>bold</b>", "The user is you."])
def test_plain_marks_are_no_markup(text: str) -> None:
    assert check_control_tokens(text, "") == []


def test_the_same_is_the_same_to_the_character() -> None:
    first = "The capital of France is Paris, a large city."
    assert check_same(first, first) == []
    for other in ("The capital of France is Paris, a big city.", "The cap !!", "", first + " "):
        assert codes(check_same(first, other)) == {"not-the-same"}
