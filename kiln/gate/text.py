"""Is this text sane? Pure functions from a text to what is wrong with it.

Each looks for one way in which broken kernels, weights, tokenizers or templates show
themselves, and each must let honest text pass: "Stop!!!", a word in another script, an
answer about markup to a question about it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from kiln.gate.model import Problem

# ---- nothing there ---------------------------------------------------------------------------


def check_empty(text: str | None, reasoning: str | None) -> list[Problem]:
    """Null, empty or blank; said apart: the whole answer went into the reasoning."""
    if text is not None and text.strip():
        return []
    if reasoning is not None and reasoning.strip():
        return [Problem("answer-in-reasoning", "the answer is in the reasoning, not the content")]
    return [Problem("empty", f"the answer is empty: {text!r}")]


# ---- repetition --------------------------------------------------------------------------------

_RULERS = set("-=_*#~.+| \t\n─═")  # honest text draws lines with these
_LONGEST_RUN = {"ruler": 100, "digit": 40, "other": 8}
_PERIOD = re.compile(r"(.{2,48}?)\1{4,}", re.DOTALL)
_PERIOD_COVERS = 40  # characters
_WORDS, _DISTINCT = 24, 0.4  # from so many words on, the share of distinct 4-grams


def check_repetition(text: str) -> list[Problem]:
    """A character, a phrase or a line that comes again and again."""
    body = text.strip()
    if len(body) >= 3 and len(set(body)) == 1 and not body.isalnum():
        return [Problem("repetition", f"nothing but {body[0]!r}")]
    for match in re.finditer(r"(.)\1+", body, re.DOTALL):
        char = match.group(1)
        kind = "ruler" if char in _RULERS else "digit" if char.isdigit() else "other"
        if len(match.group()) >= _LONGEST_RUN[kind]:
            return [Problem("repetition", f"{char!r} {len(match.group())} times in a row")]
    for match in _PERIOD.finditer(body[-2000:]):
        phrase = match.group(1)
        if len(match.group()) >= _PERIOD_COVERS and len(set(phrase) - _RULERS) > 0:
            times = len(match.group()) // len(phrase)
            return [Problem("repetition", f"{phrase!r} {times} times in a row")]
    words = body.split()
    if len(words) >= _WORDS:
        grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        share = len(set(grams)) / len(grams)
        if share < _DISTINCT:
            return [Problem("repetition", f"only {share:.0%} of its 4-grams are distinct")]
    return []


# ---- a tokenizer's own alphabet ------------------------------------------------------------------


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: Ġ is a blank, Ċ a line feed, é is "Ã©"."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in plain)
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}


_BYTE_OF = _byte_alphabet()
# Ġ and Ċ are letters of Maltese, where they never follow a small letter, a digit or a
# mark within a word; nor does "Ġ" stand before an ASCII capital and a small letter.
_GLUED = re.compile(r"[a-z0-9.,:;!?)'\"ĠĊ][ĠĊ]|Ġ[A-Z][a-z]|[ĠĊ]\Z")
_FOREIGN_RUN = re.compile(r"[^\x00-\x7fĠĊ]{2,}")


def check_byte_symbols(text: str) -> list[Problem]:
    """Bytes that were never decoded (TheĠcapital), or wrongly (â€ for a quotation mark)."""
    if found := _GLUED.search(text):
        return [Problem("byte-symbols", f"raw byte-level symbols near {_near(text, found)!r}")]
    for run in _FOREIGN_RUN.finditer(text):
        if _is_utf8(_gpt2_bytes(run.group())) or _is_utf8(_windows_bytes(run.group())):
            return [Problem("byte-symbols", f"wrongly decoded bytes: {run.group()[:20]!r}")]
    return []


def _gpt2_bytes(run: str) -> bytes | None:
    codes = [_BYTE_OF.get(char) for char in run]
    return bytes(code for code in codes if code is not None) if None not in codes else None


def _windows_bytes(run: str) -> bytes | None:
    try:
        return run.encode("cp1252")
    except UnicodeEncodeError:
        return None


def _is_utf8(data: bytes | None) -> bool:
    """Whether it is UTF-8 with at least one character of several bytes."""
    try:
        return data is not None and len(data.decode()) < len(data)
    except UnicodeDecodeError:
        return False


# ---- characters and scripts ----------------------------------------------------------------------

_Item = TypeVar("_Item", str, bool)
_WINDOW = 40  # letters or marks looked at together, so that good text cannot hide noise
_FOREIGN, _MARKS = 0.3, 0.6  # shares of a window


def check_characters(text: str) -> list[Problem]:
    """Characters that no text has: U+FFFD, controls, private and unassigned ones."""
    if "\ufffd" in text:
        return [Problem("replacement-character", "it holds U+FFFD: bytes that are no text")]
    odd = next(filter(_is_odd, text), None)
    return [] if odd is None else [Problem("odd-characters", f"it holds {odd!r}")]


def _is_odd(char: str) -> bool:
    # Some emoji are newer than this Python's Unicode tables.
    if char in "\n\t\r" or "\U0001f000" <= char <= "\U0001faff":
        return False
    return unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs")


def check_scripts(text: str, scripts: frozenset[str]) -> list[Problem]:
    """Letters of many scripts, or mostly marks; scripts: what the question calls for.

    A name or word of one other script passes; two other scripts close together, or much
    of one, do not.
    """
    letters = [_script(char) for char in text if char.isalpha()]
    for part in _windows(letters):
        foreign = Counter(script for script in part if script not in scripts)
        count = sum(foreign.values())
        if len(foreign) > 1 or (count > _FOREIGN * len(part) and count > 3):
            return [Problem("mixed-scripts", "letters of " + ", ".join(sorted(foreign)))]
    marks = [not char.isalnum() for char in text if not char.isspace()]
    for window in _windows(marks):
        if len(window) == _WINDOW and sum(window) / _WINDOW > _MARKS:
            return [Problem("noise", "more marks than letters")]
    return []


def _windows(items: list[_Item]) -> Iterator[list[_Item]]:
    if items:
        for start in range(0, max(1, len(items) - _WINDOW + 1), _WINDOW // 4):
            yield items[start : start + _WINDOW]
        yield items[-_WINDOW:]


_CJK = {"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"}


def _script(letter: str) -> str:
    """The script's name as in Unicode's character names; those of Japanese are one."""
    name = unicodedata.name(letter, "UNKNOWN").split()[0]
    if name in _CJK:
        return "CJK"
    # ª, µ and mathematical letters are at home in any text.
    return "LATIN" if name in ("FEMININE", "MASCULINE", "MICRO", "MATHEMATICAL") else name


# ---- markup that belongs to the template ---------------------------------------------------------

_CONTROL = re.compile(
    # <|im_end|>, <|eot_id|>; DeepSeek's have a full-width bar
    r"<[|\uff5c][^<>|\uff5c\n]{1,40}[|\uff5c]>"
    r"|</?(?:s|bos|eos|pad|unk|mask)>"
    r"|</?(?:start|end)_of_turn>|</?(?:start|end)_(?:function_call|header_id)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
    r"|<</?SYS>>"
    r"|</?(?:think|thinking|tool_call|tool_calls|tools|tool_response|function_call)>"
    r"|<\|?(?:tool_call|python_tag)\|?>|<function=|</function>|<parameter=|</parameter>"
    r"|###\s*(?:Instruction|Response|Human|Assistant)\s*:"
)
_HEADER = re.compile(r"(?:\A|\n)[ \t]*(?:assistant|user|system)[ \t]*:?[ \t]*\n", re.IGNORECASE)


def check_control_tokens(text: str, prompt: str, *, about: bool = False) -> list[Problem]:
    """Markup of chat templates, tools or reasoning in the text itself.

    What the prompt holds may come back. about: the prompt asks about such markup.
    """
    if about:
        return []
    for found in _CONTROL.finditer(text):
        if found.group() not in prompt:
            return [Problem("control-tokens", f"markup in the text: {found.group()!r}")]
    if header := _HEADER.search(text):
        return [Problem("control-tokens", f"a turn's header in the text: {header.group()!r}")]
    return []


# ---- two answers to one question -----------------------------------------------------------------


def check_same(first: str, second: str) -> list[Problem]:
    """Whether two greedy answers to one question are the same text.

    Both are asked alone, so no batching changes the order of sums between them.
    """
    if first == second:
        return []
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    what = f"greedy answers differ from character {common}: {first!r}, {second!r}"
    return [Problem("not-the-same", what)]


def _near(text: str, found: re.Match[str]) -> str:
    return text[max(0, found.start() - 10) : found.end() + 10]
