"""The sandbox: the only way in which Kiln runs foreign code (DESIGN.md, promise 8).

bubblewrap puts a locked root in place of the machine: read-only at /, with a /proc and
/dev of its own, an empty /tmp in memory, and the binds of the command; no network, no
inherited file descriptors, a fixed user, host name, environment and umask. What runs
inside sees the same world whoever starts it and wherever, but for the kernel, the
processor and the amount of memory.

Nothing outlives its caller: bubblewrap asks the kernel to be killed with its parent, and
with it ends the process namespace, however many processes there are.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kiln.compile.root import GID, UID
from kiln.compile.tools import Tool, find_tool
from kiln.errors import CannotHere, JudgedBad
from kiln.source.tar import EPOCH
from kiln.store import Store

HOME = "/tmp/home"  # noqa: S108 - inside the sandbox, where /tmp is its own
ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "TZ": "UTC",
}
HOSTNAME = "kiln"
_NO_PROGRAM = b"bwrap: execvp "
TAIL = 40  # lines of a log that an error shows
_PLAIN = re.compile(r"/[^/\0]+(/[^/\0]+)*")
_WITH_MEMORY = 'ulimit -v "$0" && exec "$@"'


@dataclass(frozen=True)
class Bind:
    """A file or folder of the machine, at `target` inside. The target must exist in the
    root, or lie below another writable bind or /tmp."""

    source: Path
    target: str
    writable: bool = False

    def __post_init__(self) -> None:
        if not _PLAIN.fullmatch(self.target) or posixpath.normpath(self.target) != self.target:
            raise ValueError(f"bind target {self.target!r} is not a plain absolute path")


@dataclass(frozen=True)
class Command:
    """What to run, and in which root.

    env: added to `ENVIRONMENT`, wins over it. seconds: wall-clock limit. memory: limit of
    address space for each process, in bytes (the root must have /bin/sh for it).
    """

    argv: tuple[str, ...]
    root: Path
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    cwd: str = "/"
    seconds: float | None = None
    memory: int | None = None


class Executor(Protocol):
    """Runs commands in a sandbox: here, or one day elsewhere."""

    def run(self, command: Command, log: Path) -> int:
        """Run to the end, output into `log`; the exit status as a shell gives it: 127 if
        the root has no such program, 128 + n for signal n.

        Raises JudgedBad("compile.timeout"), and CannotHere("sandbox.setup") if the
        command was never started.
        """


@dataclass(frozen=True)
class Bubblewrap:
    """The local executor. tool: which bubblewrap."""

    tool: Tool

    def arguments(self, command: Command, status: int) -> list[str]:
        """bubblewrap's whole command line. status: file descriptor for its reports."""
        args = [
            *self.tool.argv,
            *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"),
            *("--uid", str(UID), "--gid", str(GID), "--cap-drop", "ALL"),
            *("--hostname", HOSTNAME, "--json-status-fd", str(status), "--clearenv"),
            *("--ro-bind", str(command.root), "/", "--proc", "/proc", "--dev", "/dev"),
            *("--tmpfs", "/tmp", "--dir", HOME),  # noqa: S108
        ]
        for bind in command.binds:
            args += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]
        for name, value in sorted({**ENVIRONMENT, **command.env}.items()):
            args += ["--setenv", name, value]
        args += ["--chdir", command.cwd, "--"]
        if command.memory is not None:
            args += ["/bin/sh", "-c", _WITH_MEMORY, str(command.memory // 1024)]
        return [*args, *command.argv]

    def run(self, command: Command, log: Path) -> int:
        """See `Executor.run`. On any exception, Ctrl-C included, all processes are killed."""
        with tempfile.TemporaryFile() as status, log.open("wb") as out:
            process = subprocess.Popen(
                self.arguments(command, status.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={},
                umask=0o022,
                pass_fds=[status.fileno()],
            )
            try:
                process.wait(command.seconds)
            except subprocess.TimeoutExpired:
                raise _timeout(command, log) from None
            finally:
                process.kill()
                process.wait()
            if process.returncode == -signal.SIGINT:
                raise KeyboardInterrupt  # the terminal sent it to bubblewrap as well
            status.seek(0)
            code = _exit_code(status.read())
        if process.returncode < 0:
            return 128 - process.returncode
        if code is None and not log.read_bytes().startswith(_NO_PROGRAM):
            raise _no_setup(self.tool, log)
        return 127 if code is None else code


def _exit_code(reports: bytes) -> int | None:
    """The command's status from bubblewrap's reports (JSON objects); None: never ran."""
    for line in reports.splitlines():
        report = json.loads(line)
        if "exit-code" in report:
            return int(report["exit-code"])
    return None


# Tools that this process has seen at work; a build asks for the sandbox hundreds of times.
_proven: set[Tool] = set()


def find_sandbox(store: Store) -> Bubblewrap:
    """The sandbox of this machine: the host's bubblewrap, or the closure's; proven to work.

    Raises CannotHere("sandbox.none"): there is no unsandboxed mode.
    """
    tool = find_tool(store, ("bwrap",))
    if tool is None:
        raise CannotHere(
            "sandbox.none",
            "no bubblewrap on this machine",
            why="bwrap is not in PATH, and the store holds no closure with it",
            fix="install the package bubblewrap; Kiln never runs foreign code without it",
        )
    sandbox = Bubblewrap(tool)
    if tool in _proven:
        return sandbox
    with tempfile.TemporaryDirectory() as scratch:
        # The machine itself as the root. /proc/self/exe is bubblewrap (or the loader that
        # started it): the one program that is sure to be there.
        probe = Command(("/proc/self/exe", "--version"), Path("/"), seconds=30)
        log = Path(scratch) / "log"
        try:
            status = sandbox.run(probe, log)
        except CannotHere:
            status = -1
        if status:
            raise _not_allowed(tool, tail(log))
    _proven.add(tool)
    return sandbox


def check(executor: Executor, command: Command, log: Path, what: str, store: Store) -> None:
    """Run a command that has to end well.

    what: for people, "the build of arctic-inference". Raises JudgedBad("compile.failed")
    with the end of the log; the whole log is kept as a blob.
    """
    status = executor.run(command, log)
    if status:
        kept = store.blobs.path(store.blobs.put_file(log).sha256)
        raise JudgedBad(
            "compile.failed",
            f"{what} ended with status {status}",
            where=str(kept),
            why=tail(log),
            fix="read the log (its end is above, all of it is in the file named first); "
            "the sandbox has no network and only what the build root holds",
        )


def tail(log: Path, lines: int = TAIL) -> str:
    """The last lines of a log, at most 64 KiB of it; control characters made harmless."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 16)))
        text = file.read().decode("utf-8", "replace")
    shown = "\n".join(text.splitlines()[-lines:])
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in shown)


def _timeout(command: Command, log: Path) -> JudgedBad:
    return JudgedBad(
        "compile.timeout",
        f"{command.argv[0]} was killed after {command.seconds:g} s in the sandbox",
        why=tail(log),
        fix="find out what it waits for; the sandbox has no network and no terminal",
    )


def _no_setup(tool: Tool, log: Path) -> CannotHere:
    return CannotHere(
        "sandbox.setup",
        "the sandbox could not be put together",
        where=str(tool),
        why=tail(log),
        fix="`kiln doctor` says whether sandboxes work here at all",
    )


def _not_allowed(tool: Tool, why: str) -> CannotHere:
    return CannotHere(
        "sandbox.none",
        "this machine does not let bubblewrap work",
        where=str(tool),
        why=why,
        fix="allow user namespaces: sysctl user.max_user_namespaces above 0, "
        "kernel.unprivileged_userns_clone=1 (older Debian), "
        "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); "
        "in a container: a seccomp profile that allows them and an unmasked /proc",
    )
