"""Ctrl-C during a build: what runs may end, and a second one kills at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, time
from kiln.graph.action import Graph, Node, Step
from kiln.graph.build import build
from kiln.progress import Lines
from kiln.store import Store
from pathlib import Path

def run(context):
    print("runs", flush=True)
    time.sleep(float(sys.argv[2]))
    return {"out": context.store.blobs.put(b"made")}

class Nothing:
    def fetch(self, wanted): pass

store = Store(Path(sys.argv[1]))
graph = Graph([Node("slow", Step("slow", 1, run), {}, {})])
try:
    build(store, graph, "slow", Nothing(), Lines())
except KeyboardInterrupt:
    print("ended", len(list(store.actions.items())), flush=True)
"""


def start(store: Path, seconds: float) -> subprocess.Popen[str]:
    """A build of one action that runs so long, when it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(store), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("interrupted: slow may end first; Ctrl-C again")
    return process


def test_what_runs_may_end_and_is_kept(tmp_path: Path) -> None:
    process = start(tmp_path / "store", 2)
    assert process.communicate(timeout=20)[0] == "ended 1\n"
    assert process.returncode == 0


def test_a_second_one_kills_at_once(tmp_path: Path) -> None:
    process = start(tmp_path / "store", 60)
    # The note is written before the handler is changed.
    for _ in range(100):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            continue
    process.communicate(timeout=1)
    assert process.returncode == -signal.SIGINT
