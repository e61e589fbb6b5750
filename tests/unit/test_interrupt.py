"""Ctrl-C during a build: what runs may end, and a second one kills at once. And what else
ends a program lets it clean up as Ctrl-C does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


COMMAND = """
import sys, time
import click
import kiln.cli

@click.command()
def wait():
    try:
        print("runs", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)

kiln.cli.cli.add_command(wait)
kiln.cli.COMMANDS["wait"] = ""
kiln.cli._Lazy.get_command = lambda *_: wait
sys.argv = ["kiln", "wait"]
kiln.cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_a_command_lets_it_clean_up(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", "-c", COMMAND],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("cleaned up\n", 128 + number)
    assert err.lstrip().startswith("interrupted; finished work is kept")


def test_under_nohup_a_lost_terminal_ends_nothing() -> None:
    script = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + COMMAND
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    process.communicate()
