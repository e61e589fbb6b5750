"""What this machine can do, and what each lack means."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kiln.compile.sandbox import find_sandbox
from kiln.compile.tools import find_runtime, find_tool
from kiln.errors import KilnError
from kiln.fetch.debian import mirrors
from kiln.fetch.settings import read_settings
from kiln.layer.encode import check_known_answer
from kiln.progress import Silent, human
from kiln.run.engine import Engine
from kiln.store import Store

Mark = Literal["ok", "no", "note"]
NEEDED_BYTES = 12_000_000_000  # downloads, trees, layers and one unpacked image


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. mark: "no" stops something, "note" is worth knowing."""

    what: str
    mark: Mark
    text: str


@dataclass(frozen=True)
class Report:
    """All findings. able: whether the default pin can be built and gated here."""

    findings: tuple[Finding, ...]

    @property
    def able(self) -> bool:
        """No finding that stops the default pin."""
        return not any(finding.mark == "no" for finding in self.findings)

    def text(self) -> str:
        """A table."""
        width = max(len(finding.what) for finding in self.findings)
        lines = [f"{f.mark:<4}  {f.what:<{width}}  {f.text}" for f in self.findings]
        lines.append(
            "the default pin can be built and gated here"
            if self.able
            else "something is missing for the default pin: see the lines marked `no`"
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        rows = [{"what": f.what, "mark": f.mark, "text": f.text} for f in self.findings]
        return {"able": self.able, "findings": rows}


def examine(store: Store) -> Report:
    """Look at everything; nothing is changed, and nothing outside is asked."""
    return Report(tuple(_findings(store)))


def _findings(store: Store) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} (Kiln's own; images have theirs)")
    yield _tried("encoder", lambda: check_known_answer() or "gives the bytes that locks expect")
    free = shutil.disk_usage(store.root).free
    mark: Mark = "ok" if free > NEEDED_BYTES else "no"
    yield Finding("store", mark, f"{store.root}, {human(free)} free")
    yield _sandbox(store)
    yield from _starting(store)
    yield _gpu()
    for line in read_settings().describe():
        yield Finding("wheels", "ok", line)
    yield from _debian()


def _tried(what: str, look: Callable[[], str], lack: Mark = "no") -> Finding:
    try:
        return Finding(what, "ok", look())
    except KilnError as error:
        return Finding(what, lack, f"{error.what}: {error.fix or error.why}")


def _sandbox(store: Store) -> Finding:
    if find_tool(store, ("bwrap",)) is None:
        return Finding("sandbox", "note", "no bubblewrap; `kiln build` takes the lock's own")
    return _tried("sandbox", lambda: str(find_sandbox(store).tool))


def _starting(store: Store) -> Iterator[Finding]:
    """Ways to start an image: an engine, or a runtime as root."""
    engine = _tried("engine", lambda: f"Docker {Engine.connect().version}", "note")
    yield engine
    root = os.geteuid() == 0
    if find_tool(store, ("crun", "runc")) is None:
        runtime = Finding("runtime", "note", "no crun or runc; `kiln gate` takes the lock's own")
    else:
        runtime = _tried("runtime", lambda: str(find_runtime(store, Silent())), "note")
    yield runtime
    if engine.mark != "ok" and not root:
        yield Finding("gates", "no", "starting an image needs a Docker engine, or root")


def _gpu() -> Finding:
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if nodes:
        return Finding("gpu", "ok", ", ".join(node.name for node in nodes))
    return Finding("gpu", "note", "none; the default pin is for the CPU")


def _debian() -> Iterator[Finding]:
    """Mirrors are needed to lock, and to fetch packages that the store has not."""
    found = mirrors("bookworm")
    for mirror in found:
        yield Finding("debian", "ok", mirror.uri)
    if not found:
        yield Finding("debian", "no", "no mirror known: set KILN_DEBIAN_MIRROR")
    if shutil.which("apt-get") is None:
        yield Finding("apt", "note", "not here; only `kiln lock` needs it")
