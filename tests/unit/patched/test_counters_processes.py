"""What patches say of themselves, from several processes: engines, workers, API servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PATCHES = ("kiln-identity",)

# A program that imports vLLM; `vllm serve` begins where main() does.
HEAD = """
import json, logging, multiprocessing, os, signal, subprocess, sys, threading, time
logging.basicConfig(level=logging.INFO)
from vllm import _kiln

def show():
    said = _kiln.said()
    print(json.dumps([{",".join(k): v for k, v in said.counts.items()},
                      {",".join(k): v for k, v in said.settings.items()},
                      sorted(said.runs)]), flush=True)
"""


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    """The folder of temporary files, with a process id of its own in its name."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    return tmp


@pytest.fixture
def start(site: Path, tmp: Path) -> Any:
    """Starts a Python program that has a patched vllm package; its processes die with it."""
    (site / "vllm/__init__.py").write_text("from . import _kiln\n_kiln.inherit()\n")
    running: list[subprocess.Popen[str]] = []

    def start(program: str, *prefix: str, **env: str) -> subprocess.Popen[str]:
        file = site / f"program{len(running)}.py"
        file.write_text(HEAD + program)
        process = subprocess.Popen(
            [*prefix, sys.executable, str(file)],
            env={"PYTHONPATH": str(site), "TMPDIR": str(tmp), "PATH": os.environ["PATH"], **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process: subprocess.Popen[str]) -> list[Any]:
    """What a program has shown, line by line; it must end well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.communicate()[1]
    return json.loads(text)


def folders(tmp: Path) -> list[str]:
    return [path.name for path in tmp.iterdir() if path.name.startswith("kiln-counters-")]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_counts_of_all_processes_add_up(start: Any, tmp: Path, method: str) -> None:
    process = start(
        """
def worker(number):
    _kiln.count("p", "x", number)
    _kiln.setting("p", "rank", "same")
    _kiln.runs("Runner", "Proposer" if number == 3 else "")

def server(_):
    show()

if __name__ == "__main__":
    _kiln.begin()
    _kiln.count("p", "x", 100)
    _kiln.count("p", "config")
    context = multiprocessing.get_context("METHOD")
    for target, arguments in [(worker, (1, 2, 3)), (server, (1, 2))]:
        children = [context.Process(target=target, args=(n,)) for n in arguments]
        [child.start() for child in children]
        [child.join() for child in children]
    show()
""".replace("METHOD", method),
    )
    shown = finish(process)
    want = [
        {"p,x": 106, "p,config": 1},
        {"p,rank": "same"},
        [["Runner", ""], ["Runner", "Proposer"]],
    ]
    assert shown == [want, want, want]
    assert folders(tmp) == []


def test_a_forked_child_does_not_write_to_its_parents_counters(start: Any) -> None:
    shown = finish(
        start("""
_kiln.count("p", "x", 3)
if not (child := os.fork()):
    _kiln.count("p", "x", 2)
    os._exit(0)
os.waitpid(child, 0)
show()
_kiln.count("p", "x", 3)
show()
print(len(os.listdir(os.environ["KILN_COUNTERS"])))
""")
    )
    assert shown == [[{"p,x": 5}, {}, []], [{"p,x": 8}, {}, []], 2]


def test_a_fork_while_another_thread_counts_does_not_hang(start: Any) -> None:
    shown = finish(
        start("""
_kiln._here.lock.acquire()
if not (child := os.fork()):
    _kiln.count("p", "x")
    os._exit(0)
_kiln._here.lock.release()
for _ in range(300):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
show()
""")
    )
    assert shown == [[{"p,x": 1}, {}, []]]


WORKER = """
def worker():
    _kiln.count("p", "x", 7)
    print(json.dumps(os.getpid()), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    _kiln.begin()
    child = multiprocessing.get_context("spawn").Process(target=worker)
    child.start()
    child.join()
    show()
"""


def test_counts_of_a_killed_worker_stay(start: Any) -> None:
    process = start(WORKER)
    os.kill(line(process), signal.SIGKILL)
    assert finish(process) == [[{"p,x": 7}, {}, []]]


def test_each_server_that_a_program_starts_counts_from_0(start: Any) -> None:
    """`vllm bench sweep` and its kind: vLLM is imported, then serves in children."""
    shown = finish(
        start("""
_kiln.count("p", "x")
server = "from vllm import _kiln; _kiln.begin(); _kiln.count('p', 'y')"
server += "; print(len(_kiln.said().counts))"
for _ in range(2):
    subprocess.run([sys.executable, "-c", server], check=True)
show()
""")
    )
    assert shown == [1, 1, [{"p,x": 1}, {}, []]]


# ---- what is left behind


def test_a_killed_start_is_removed_by_the_next(start: Any, tmp: Path) -> None:
    first = start(WORKER)
    line(first)
    (left,) = folders(tmp)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    # Its worker lives on and counts: not yet.
    assert finish(start("_kiln.count('p', 'y'); show()")) == [[{"p,y": 1}, {}, []]]
    assert folders(tmp) == [left]
    os.killpg(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while folders(tmp) and time.monotonic() < deadline:
        assert finish(start("_kiln.count('p', 'y'); show()")) == [[{"p,y": 1}, {}, []]]
    assert folders(tmp) == []


def test_a_start_that_runs_is_left_alone(start: Any, tmp: Path) -> None:
    first = start("_kiln.count('p', 'x'); show(); sys.stdin.read(); show()")
    line(first)
    mine = folders(tmp)
    finish(start("_kiln.count('p', 'y')"))
    assert folders(tmp) == mine
    # Another user's, or one that only looks like it, too.
    for name in ("kiln-counters-x", "kiln-counters-99999-1-1-0123456789abcdef"):
        (tmp / name).mkdir()
    finish(start("_kiln.count('p', 'y')"))
    assert len(folders(tmp)) == 3
    assert finish(first) == [[{"p,x": 1}, {}, []]]


@pytest.mark.root
def test_a_container_that_starts_again_counts_from_0(start: Any, tmp: Path) -> None:
    """Killed, /tmp kept, and the same process ids in a new namespace."""
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    program = "print(json.dumps([os.getpid(), os.environ['KILN_COUNTERS']]), flush=True)\n"
    program += "_kiln.count('p', 'x', 5)\nshow()\n"
    first = start(program + "time.sleep(600)", *prefix)
    (pid, name), counts = line(first), line(first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert folders(tmp) == [Path(name).name]
    shown = finish(start(program, *prefix, KILN_COUNTERS=name))
    assert shown[0][0] == pid == 1
    assert shown[0][1] != name
    assert shown[1] == counts == [{"p,x": 5}, {}, []]
    assert folders(tmp) == []
