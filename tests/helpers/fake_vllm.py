"""Imitates `vllm serve` in all the states that starts meet; runs inside test images.

Standard library only. `fake_vllm.py MODEL [--state STATE] --served-model-name N --uds S`:

    ready            answers
    refuse=SECONDS   binds at once, listens later (vLLM 0.23 while it loads)
    early=SECONDS    /health and /v1/models are fine at once, completions 503 until then
    hang             all is fine, only a completion never returns
    sleep            prints a line, listens nowhere
    die              a traceback and exit 3
    oom              CUDA's words and exit 1
    deaf             ready, ignores SIGTERM
    orphan           ready; SIGTERM ends it, but a child that ignores SIGTERM stays

/metrics shows what a Kiln image does: an identity, and one patch, `fake`, whose decision
`taken` counts completions where FAKE_PATCH=1. With `--speculative-config X` every completion
has a draft.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"


IDENTITY = """\
kiln_build_info{kiln_id="1",patch_set="2",pin="tiny",vllm_version="0.0.0"} 1
kiln_patch_info{patch="fake",sha256="3"} 1
kiln_modified_files 0
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model, state, since, seconds = "", "ready", 0.0, 0.0
    speculates, completions = False, 0

    def metrics(self) -> bytes:
        taken = self.completions if os.environ.get("FAKE_PATCH") == "1" else 0
        proposer = "FakeProposer" if self.speculates else ""
        lines = [
            f'kiln_patch_decisions_total{{patch="fake",decision="taken"}} {taken}',
            f'kiln_runtime_info{{runner="FakeRunner",proposer="{proposer}"}} 1',
        ]
        if self.speculates:
            for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
                lines.append(f"vllm:spec_decode_{name}_total {self.completions}")
        return (IDENTITY + "\n".join(lines) + "\n").encode()

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.send(self.metrics())
        elif self.path == "/v1/models":
            self.say({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif self.path == "/version":
            self.say({"version": "0.0.0"})
        else:
            self.say({}, 200 if self.path == "/health" else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.state == "hang":
            time.sleep(3600)
        if self.state == "early" and time.monotonic() - self.since < self.seconds:
            self.say({"error": "engine is loading"}, 503)
        elif body["model"] != self.model:
            self.say({"error": "no such model"}, 404)
        elif body.get("stream"):
            self.stream(["Hel", "lo"])
        else:
            Handler.completions += 1
            logprobs = {"tokens": ["Hello"], "token_logprobs": [-0.1], "top_logprobs": [{}]}
            choice = {"text": "Hello", "finish_reason": "length", "logprobs": logprobs}
            self.say({"model": self.model, "choices": [choice], "usage": {"completion_tokens": 1}})

    def stream(self, words: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in [*(json.dumps({"choices": [{"text": word}]}) for word in words), "[DONE]"]:
            data = f"data: {word}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def say(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status)

    def send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


def log(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--state", default="ready")
    parser.add_argument("--served-model-name")
    parser.add_argument("--uds")
    parser.add_argument("--speculative-config", default="")
    options = parser.parse_args()
    state, _, seconds = options.state.partition("=")
    log(f"starting {options.model} in state {state}")
    if state == "die":
        raise SystemExit("Traceback (most recent call last):\nImportError: libfoo.so.1") from None
    if state == "oom":
        log("(EngineCore_0 pid=7) " + OOM)
        log("RuntimeError: Engine core initialization failed.")
        raise SystemExit(1)
    if state == "sleep":
        time.sleep(3600)
    if state == "orphan" and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    ignored = state == "deaf"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else lambda *_: os._exit(0))
    Handler.model, Handler.state = options.served_model_name, state
    Handler.speculates = bool(options.speculative_config)
    Handler.since, Handler.seconds = time.monotonic(), float(seconds or 0)
    server = Server(options.uds, Handler, bind_and_activate=False)
    server.server_bind()
    if state == "refuse":
        time.sleep(float(seconds))
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log("ready")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
