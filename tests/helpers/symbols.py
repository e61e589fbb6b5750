"""A vLLM of a few lines, a patch to it, and what the symbol check says of changes to it."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.drift.finding import Finding
from kiln.drift.symbols import Symbols, check_symbols
from kiln.pins.patch import PatchFile
from tests.helpers.drift import Texts, diff, patch

PROPOSER, CONFIG, UTILS, RUNNER = (
    "vllm/v1/proposer.py",
    "vllm/config/spec.py",
    "vllm/utils.py",
    "vllm/v1/runner.py",
)
OLD = {
    "vllm/config/__init__.py": "from vllm.config.spec import SpecConfig\n",
    CONFIG: """\
from dataclasses import dataclass


@dataclass
class SpecConfig:
    method: str
    tokens: int = 4

    def is_ngram(self):
        return self.method == "ngram"
""",
    UTILS: """\
LIMIT = 8


def clamp(value, low, high=8):
    return max(low, min(value, high))
""",
    PROPOSER: """\
from vllm.config import SpecConfig


class Base:
    def load(self, path):
        return path

    def propose(self, tokens):
        return tokens


class NgramProposer(Base):
    def __init__(self, config: SpecConfig):
        self.config = config
        self.k = config.tokens

    def propose(self, tokens, lengths):
        found = tokens[-1:]
        draft = found[: self.k]
        return draft

    def width(self, most):
        return min(self.k, most)
""",
    RUNNER: """\
from vllm.v1.proposer import NgramProposer


class Runner:
    def __init__(self, config):
        self.drafter = NgramProposer(config)
""",
}
_DRAFT = "        draft = found[: self.k]\n"


def hook(*lines: str, name: str = "fix", before: str = OLD[PROPOSER]) -> PatchFile:
    """A patch that adds these lines to NgramProposer.propose."""
    added = "".join(f"        {line}\n" if line else "\n" for line in lines)
    return patch(name, diff(PROPOSER, before, before.replace(_DRAFT, _DRAFT + added)))


def module(text: str, *others: str, name: str = "fix") -> PatchFile:
    """A patch that adds vllm/_own.py, and does what other diffs say."""
    return patch(name, diff("vllm/_own.py", "", text), *others)


def change(path: str, before: str, after: str) -> dict[str, str]:
    """The source with one text of one file replaced."""
    assert before in OLD[path]
    return {**OLD, path: OLD[path].replace(before, after)}


def check(new: Mapping[str, str], *series: PatchFile) -> Symbols:
    """What a series on OLD comes to on another source."""
    return check_symbols(series, Texts(OLD, "1.0"), Texts(new, "2.0"))


def findings(new: Mapping[str, str], *series: PatchFile) -> list[tuple[str, str, bool]]:
    """Kind, name and `breaks` of each finding."""
    return [(f.kind, f.name, f.breaks) for f in check(new, *series).findings]


def only(new: Mapping[str, str], *series: PatchFile) -> Finding:
    """The one finding."""
    (found,) = check(new, *series).findings
    return found
