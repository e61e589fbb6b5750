"""Stores to measure in: empty ones that read the blobs of the user's store.

The user's store is never written. A store of the bench has it as an alternate (so every
locked file lies on the disk) and gets a copy of its action table, less the results whose
making is to be measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.errors import CannotHere
from kiln.store import default_root

ROOT = Path(__file__).parents[2]
KILN = Path(sys.executable).with_name("kiln")


@dataclass(frozen=True)
class Ran:
    """A command that ended well. peak: bytes, of the largest of its processes."""

    seconds: float
    peak: int
    output: str


def run(
    command: Iterable[str | Path], environment: Mapping[str, str] = {}, cwd: Path = ROOT
) -> Ran:
    """Run a command and time it, its start included.

    What was written before is on the disk when the clock starts. Raises
    CannotHere("bench.command") with the last words of a command that failed.
    """
    argv = [str(part) for part in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        os.sync()
        start = time.monotonic()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=cwd,
            env={**os.environ, **environment},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        said, complaint = out.read().decode(), errors.read().decode(errors="replace")
    if process.returncode:
        raise CannotHere(
            "bench.command",
            f"{' '.join(argv[:3])} ended with {process.returncode}",
            why=(complaint or said)[-2000:],
        )
    return Ran(seconds, usage.ru_maxrss * 1024, said)


def best(count: int, work: Callable[[], Ran]) -> Ran:
    """The fastest of some runs: what is slower was disturbed by something else."""
    return min((work() for _ in range(count)), key=lambda ran: ran.seconds)


@dataclass(frozen=True)
class Built:
    """A timed `kiln build`. data: what its --json says."""

    ran: Ran
    data: Mapping[str, Any]


class Stores:
    """The bench's stores, below a folder. `ready`: nothing is left to do in it."""

    def __init__(self, folder: Path, source: Path | None = None) -> None:
        self.folder, self.ready = folder, folder / "ready"
        source = source or default_root()
        before = os.environ.get("KILN_ALTERNATES", "")
        # For this process and all it starts: a new store has every blob that there is.
        os.environ["KILN_ALTERNATES"] = os.pathsep.join(
            filter(None, (str(self.ready), str(source), before))
        )
        self.ready.mkdir(parents=True)
        if (source / "actions.db").exists():
            copy_table(source / "actions.db", self.ready / "actions.db", lambda node: True)

    @contextlib.contextmanager
    def fresh(self, keep: Callable[[str], bool]) -> Iterator[Path]:
        """A new store with the results of those nodes that `keep` says; removed afterwards."""
        store = Path(tempfile.mkdtemp(prefix="store-", dir=self.folder))
        try:
            copy_table(self.ready / "actions.db", store / "actions.db", keep)
            yield store
        finally:
            shutil.rmtree(store)

    def build(self, store: Path, root: Path = ROOT, locked: bool = True) -> Built:
        """`kiln build` of the default pin of a project, in a store."""
        command: list[str | Path] = [KILN, "build", "-C", root, "--json", "--quiet"]
        if locked:
            command.append("--locked")
        ran = run(command, {"KILN_STORE": str(store)})
        return Built(ran, json.loads(ran.output))


def of_layers(node: str) -> bool:
    """Whether a node of the graph makes a layer or what stands on the layers."""
    return node == "image" or node.startswith(("layer:", "whole:"))


def copy_table(source: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Copy an action table that others may be using, with the rows whose node is kept."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.create_function("keep", 1, keep, deterministic=True)
        with new:
            new.execute("delete from action where not keep(node)")
