"""Runners start the very image and hand out the server inside; gates judge it.

The server listens on a Unix socket in a folder that only this start knows, in a network
namespace with nothing but loopback, and under a model name chosen for this start: so
whatever answers is the image that was started (DESIGN.md, promise 5).

A start ends in one of three ways. A one-token completion works: the server is ready. The
process exits: at once an error with its last words. The deadline passes: everything is
killed. The last two are the machine's fault (CannotHere, never a verdict on the image)
where the log says so, and the image's otherwise: see kiln.run.diagnose.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kiln.errors import BadInput, KilnError
from kiln.image.read import Image
from kiln.progress import Reporter
from kiln.run.client import CallFailed, Client, Reply
from kiln.run.diagnose import died, too_late
from kiln.store import BlobStore

SOCKET_FOLDER = "/run/kiln"  # in the container
SOCKET = "vllm.sock"
MODELS = "/models"
_EVIDENCE = 2000  # lines of the log that are searched for a cause
_FIRST_TOKEN = 60.0  # seconds for one attempt at a first completion
_STILL = 30.0  # seconds between lines that say what a start is doing


def new_nonce() -> str:
    """A name for one start that no other server has: it names model, folder, container."""
    return f"kiln-{secrets.token_hex(6)}"


@dataclass(frozen=True)
class Launch:
    """One way to start an image.

    args: after the entrypoint and the model. model: a folder on this machine, mounted
    read-only at /models/<its name>. served_name: `new_nonce()`. start_seconds: until a
    first completion must work. stop_seconds: from SIGTERM to SIGKILL. shm_bytes: size of
    /dev/shm. read_only: the root file system; the image's volumes and /tmp are writable
    memory. user: "uid:gid" instead of the image's. gpus: all NVIDIA GPUs of the machine.
    """

    model: Path
    served_name: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 600
    stop_seconds: float = 30
    shm_bytes: int = 1 << 30
    read_only: bool = True
    user: str | None = None
    gpus: bool = False

    @property
    def model_path(self) -> str:
        """Where the model is in the container."""
        return f"{MODELS}/{self.model.name}"

    def command(self) -> tuple[str, ...]:
        """What stands behind the image's entrypoint."""
        socket = f"{SOCKET_FOLDER}/{SOCKET}"
        name = ("--served-model-name", self.served_name)
        return (self.model_path, *self.args, *name, "--uds", socket)

    def environment(self, image: Image) -> dict[str, str]:
        """The image's environment, then this launch's."""
        pairs = (text.partition("=") for text in image.env)
        return {name: value for name, _, value in pairs} | dict(self.env)


@dataclass(frozen=True)
class Stopped:
    """How a server ended. clean: by itself after SIGTERM, in time. left: what was still
    there afterwards (processes, containers), one line each. ours: False where Kiln did
    not start it, and so did not stop it either."""

    seconds: float
    clean: bool
    left: tuple[str, ...] = ()
    ours: bool = True


class Server(Protocol):
    """A server under test."""

    @property
    def client(self) -> Client:
        """HTTP to it."""

    @property
    def model(self) -> str:
        """The model name that requests must carry."""

    @property
    def confirms(self) -> str:
        """What the runner vouches for: "manifest sha256:...", "config sha256:...", ""."""

    def alive(self) -> bool:
        """Whether the started process still runs."""

    def exit_status(self) -> int | None:
        """The exit status, 128 + n for signal n; None while it runs or is unknown."""

    def log_tail(self, lines: int) -> str:
        """The last lines of what it wrote to stdout and stderr."""

    def execute(self, argv: Sequence[str], seconds: float) -> tuple[int, bytes, bytes] | None:
        """Run a command in the same container: exit status, stdout, stderr.

        None where the runner has no way in. Raises CallFailed("run.timeout").
        """

    def stop(self) -> Stopped:
        """SIGTERM, then SIGKILL after the launch's stop_seconds; the second call gives
        the first one's answer."""


class Runner(Protocol):
    """A way to start images on this machine."""

    @property
    def name(self) -> str:
        """ "docker", "bundle" or "endpoint"."""

    def start(self, image: Image, launch: Launch) -> AbstractContextManager[Server]:
        """Start the image; in the `with` block its server is ready. Afterwards nothing of
        it runs or is mounted, whatever the block's end was."""


def check_launch(image: Image, launch: Launch, uid: int, gid: int) -> None:
    """Refuse what cannot work before anything is started.

    Raises BadInput with run.no-entrypoint, run.no-model, run.model-link (a link that
    leads out of the folder, dead in the container) or run.model-unreadable.
    """
    if not image.entrypoint:
        raise BadInput(
            "run.no-entrypoint",
            "the image has no entrypoint to start",
            where=str(image),
            fix="give it one in its recipe, under runtime",
        )
    folder = launch.model
    if not folder.is_dir() or not folder.is_absolute():
        raise BadInput("run.no-model", "the model's folder does not exist", where=str(folder))
    real = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(real):
            raise BadInput(
                "run.model-link",
                "the model holds a link that leads out of its folder",
                where=str(path),
                why="only the folder itself is mounted into the container",
                fix="copy the model with the files that its links point to (cp -L)",
            )
        if not _readable(path.stat(), uid, gid):
            raise BadInput(
                "run.model-unreadable",
                "the image's user cannot read the model",
                where=str(path),
                why=f"the server runs as uid {uid}, gid {gid}",
                fix=f"chmod -R a+rX {folder}",
            )


def _readable(found: os.stat_result, uid: int, gid: int) -> bool:
    wanted = 0o5 if stat.S_ISDIR(found.st_mode) else 0o4
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == gid else 0
    return (found.st_mode >> shift) & wanted == wanted


def wait_ready(
    server: Server, model: str, seconds: float, reporter: Reporter, blobs: BlobStore | None = None
) -> float:
    """Wait until a one-token completion works; returns the seconds that it took.

    Refused connections and error replies are what a loading server gives, and /v1/models
    or /health answer long before the engine does: only tokens count. Raises, with the
    last lines of the log, when the process exits (at once) or the time is over; the whole
    log is kept among `blobs`, and the error says where.
    """
    start, seen, spoke = time.monotonic(), "nobody listened yet", 0.0
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    with reporter.task("start the server"):
        while (taken := time.monotonic() - start) < seconds:
            if not server.alive():
                log = server.log_tail(_EVIDENCE)
                raise _keeping(died(server.exit_status(), log, taken), log, blobs)
            try:
                left = max(0.1, min(seconds - taken, _FIRST_TOKEN))
                reply = server.client.post_json("/v1/completions", body, left)
            except CallFailed as error:
                if error.code != "run.refused" or seen.startswith("nobody"):
                    seen = error.what
            else:
                if reply.status == 200 and _has_choice(reply):
                    return time.monotonic() - start
                seen = f"a completion ends with HTTP {reply.status}: {reply.body[:300]!r}"
            if taken - spoke >= _STILL:
                spoke = taken
                reporter.note(f"not ready after {taken:.0f} s: {server.log_tail(1).strip()}")
            time.sleep(min(0.25, seconds / 20))
    log = server.log_tail(_EVIDENCE)
    raise _keeping(too_late(seen, log, seconds), log, blobs)


def _keeping(error: KilnError, log: str, blobs: BlobStore | None) -> KilnError:
    if blobs is not None:
        error.where = str(blobs.path(blobs.put(log.encode(errors="replace")).sha256))
    return error


def _has_choice(reply: Reply) -> bool:
    """Whether a completion came, and not merely a 200."""
    with contextlib.suppress(CallFailed):
        value = reply.json()
        return isinstance(value, dict) and bool(value.get("choices"))
    return False
