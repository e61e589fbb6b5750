"""Sources and patches for the tests of drift: made of texts, in memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.drift.model import PatchDrift
from kiln.drift.moved import Mover
from kiln.drift.series import judge_series, own_places
from kiln.pins.patch import PatchFile, RetireWhen
from tests.helpers.small import Small, make_small, make_wheel


@dataclass(frozen=True)
class Texts:
    """A source of texts; vllm/__init__.py is always there."""

    files: Mapping[str, str]
    version: str = "1.0"
    label: str = "texts"

    def names(self) -> frozenset[str]:
        return frozenset({"vllm/__init__.py", *self.files})

    def read(self, path: str) -> bytes:
        return b"" if path == "vllm/__init__.py" else self.files[path].encode()


# A vLLM of a few lines that has all that contracts are read from.
MINI = {
    "vllm/tool_parsers/__init__.py": """\
from vllm.tool_parsers.manager import ToolParserManager

ToolParserManager.register_lazy_module("hermes", "vllm.tool_parsers.hermes", "Hermes")
ToolParserManager.register_lazy_module("qwen", "vllm.tool_parsers.qwen", "Qwen")
""",
    "vllm/tool_parsers/manager.py": """\
class ToolParserManager:
    @classmethod
    def register_lazy_module(cls, name, module_path, class_name):
        cls.lazy_parsers[name] = (module_path, class_name)
""",
    "vllm/tool_parsers/hermes.py": "class Hermes:\n    marks = ('<tool_call>',)\n",
    "vllm/tool_parsers/qwen.py": "class Qwen:\n    marks = ('<function>',)\n",
    "vllm/reasoning/__init__.py": """\
from vllm.reasoning.manager import ReasoningParserManager

ReasoningParserManager.register_lazy_module("deep", "vllm.reasoning.deep", "Deep")
""",
    "vllm/reasoning/manager.py": """\
class ReasoningParserManager:
    @classmethod
    def register_lazy_module(cls, name, module_path, class_name):
        cls.lazy_parsers[name] = (module_path, class_name)
""",
    "vllm/reasoning/deep.py": "class Deep:\n    end = '</think>'\n",
    "vllm/config/__init__.py": "",
    "vllm/config/speculative.py": """\
from typing import Literal

SpeculativeMethod = Literal["ngram", "suffix"]


class SpeculativeConfig:
    method: SpeculativeMethod | None = None
    prompt_lookup_min: int | None = None

    def __post_init__(self):
        if self.method == "ngram" and self.prompt_lookup_min is None:
            self.prompt_lookup_min = 5
""",
    "vllm/v1/proposers.py": """\
class NgramProposer:
    def propose(self, tokens):
        return tokens[-1:]


class SuffixProposer:
    def propose(self, tokens):
        return tokens[:1]
""",
    "vllm/v1/worker/gpu_model_runner.py": """\
from vllm.v1.proposers import NgramProposer, SuffixProposer


class GPUModelRunner:
    def __init__(self, config):
        self.speculative_config = config
        if self.speculative_config:
            if self.speculative_config.method == "ngram":
                self.drafter = NgramProposer()
            elif self.speculative_config.method == "suffix":
                self.drafter = SuffixProposer()
""",
    "vllm/envs.py": """\
import os

environment_variables = {
    "VLLM_SPEED": lambda: os.getenv("VLLM_SPEED", "1"),
    "VLLM_COLOUR": lambda: os.getenv("VLLM_COLOUR", "red"),
}
""",
}


def checkout(folder: Path, files: Mapping[str, str]) -> Path:
    """The files as a checkout of vLLM, of unknown version."""
    return write(folder, {"vllm/__init__.py": "", **files})


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Files below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def diff(path: str, before: str, after: str, context: int = 3) -> str:
    """A plain unified diff of one file; "" before makes it new."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path}" if before else "/dev/null",
        f"b/{path}",
        n=context,
    )
    return "".join(lines)


def patch(name: str, *diffs: str, retire_when: tuple[RetireWhen, ...] = ()) -> PatchFile:
    """A patch of a series."""
    return PatchFile(name, "".join(diffs).encode(), f"patches/{name}/1.0.patch",
                     retire_when=retire_when)  # fmt: skip


def judge(
    old: Mapping[str, str] | None, new: Mapping[str, str], *patches: PatchFile
) -> list[PatchDrift]:
    """The verdicts on a series that was made for `old` (None: not to be had), on `new`."""
    target = Texts(new, "2.0")
    if old is None:
        return list(judge_series(patches, target, {}, Mover(None, target)))
    own = Texts(old)
    return list(judge_series(patches, target, own_places(patches, own)[1], Mover(own, target)))


MANIFEST = """\
title: A patch of the tests
why: a test needs it
origin: own
unproven: it is for tests only
versions:
"""


def manifest(versions: Mapping[str, str], more: str = "") -> str:
    """A patch.yaml. versions: range -> file."""
    ranges = (f'  - {{range: "{r}", file: {file}}}\n' for r, file in versions.items())
    return MANIFEST + "".join(ranges) + more


def make_pin(folder: Path, patches: Mapping[str, Mapping[str, str]]) -> Small:
    """A project whose pin `small` is MINI as version 1.0.0+tiny, and has these patches.

    patches: id -> the files of its folder.
    """
    small = make_small(folder)
    make_wheel(small.wheels, "tiny-vllm", "1.0.0", {"vllm/__init__.py": "", **MINI})
    for name, files in patches.items():
        write(small.root / "patches" / name, files)
    pins = small.root / "pins.yaml"
    pins.write_text(pins.read_text().replace("[greeting]", f"[{', '.join(patches)}]"))
    return small
