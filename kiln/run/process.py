"""Child processes of the runners: bounded output, and finding what they left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from kiln.run.client import CallFailed

MAX_LOG = 32 << 20  # bytes of a log file; an older one of that size is kept too
MAX_OUTPUT = 16 << 20  # bytes of one command's stdout or stderr
_CHUNK = 1 << 16


class Log:
    """What a server writes, copied from a pipe to a file that cannot fill the disk."""

    def __init__(self, pipe: IO[bytes], path: Path) -> None:
        self._path, self._old = path, path.with_suffix(".old")
        path.touch()
        self._thread = threading.Thread(target=self._copy, args=(pipe,), daemon=True)
        self._thread.start()

    def _copy(self, pipe: IO[bytes]) -> None:
        size, out = 0, self._path.open("ab", buffering=0)
        try:
            while data := os.read(pipe.fileno(), _CHUNK):
                if size > MAX_LOG:
                    out.close()
                    self._path.replace(self._old)
                    size, out = 0, self._path.open("ab", buffering=0)
                out.write(data)
                size += len(data)
        finally:
            out.close()
            pipe.close()

    def tail(self, lines: int) -> str:
        """The last lines."""
        found: list[bytes] = []
        for path in (self._path, self._old):
            with contextlib.suppress(FileNotFoundError):
                found = path.read_bytes().splitlines()[-(lines - len(found)) :] + found
            if len(found) >= lines:
                break
        return b"\n".join(found).decode(errors="replace")

    def finish(self) -> None:
        """Wait until all of it is in the file; its writers must have ended."""
        self._thread.join(10)


def run_bounded(
    argv: Sequence[str], seconds: float, kill: Callable[[], None] = lambda: None
) -> tuple[int, bytes, bytes]:
    """Run a command: exit status, stdout, stderr. Raises CallFailed with run.timeout, or
    run.too-much-output; `kill` then ends what the command's own death does not."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    buffers, over = (bytearray(), bytearray()), threading.Event()

    def end() -> None:
        kill()
        process.kill()

    def read(pipe: IO[bytes], buffer: bytearray) -> None:
        while data := os.read(pipe.fileno(), _CHUNK):
            if len(buffer) > MAX_OUTPUT:
                if not over.is_set():
                    over.set()
                    end()
                continue
            buffer += data

    pipes = zip((process.stdout, process.stderr), buffers, strict=True)
    readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in pipes]
    for reader in readers:
        reader.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired as error:
        end()
        process.wait()
        raise CallFailed(
            "run.timeout", f"a command did not end within {seconds:g} s", why=" ".join(argv[-3:])
        ) from error
    except BaseException:
        end()
        raise
    for reader in readers:
        reader.join(5)  # a grandchild may still hold the pipe: what came is what counts
    if over.is_set():
        raise CallFailed("run.too-much-output", "a command wrote without end")
    return process.returncode, bytes(buffers[0]), bytes(buffers[1])


def pid_namespace(pid: int) -> int | None:
    """The inode of a process's pid namespace; None if it is gone or not ours to see."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None


def members(namespace: int, patience: float = 0) -> tuple[str, ...]:
    """The processes that live in a pid namespace, "process 42 (python3)", once `patience`
    seconds have passed or none is left. Zombies hold nothing and do not count."""
    end = time.monotonic() + patience
    while True:
        found = []
        for pid in _processes():
            if pid_namespace(pid) == namespace and (name := _living(pid)):
                found.append(f"process {pid} ({name})")
        if not found or time.monotonic() >= end:
            return tuple(found)
        time.sleep(0.05)


def kill_with_argument(option: str, value: str) -> None:
    """SIGKILL the processes that were started with these two arguments in a row; the
    value must be one that nothing but Kiln passes."""
    wanted = b"\0%s\0%s\0" % (option.encode(), os.fsencode(value))
    for pid in _processes():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _living(pid: int) -> str:
    """A process's name; "" for a zombie or none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    name, _, rest = text.partition(" (")[2].rpartition(") ")
    return "" if rest[:1] in ("Z", "X") else name
