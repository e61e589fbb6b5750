"""Progress of long work: lines in a log, a live view on a terminal.

Everything goes to stderr; stdout is for results. A `Reporter` is handed down
to whatever takes long; the live one lives in kiln/report/live.py.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TextIO


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int) -> None:
        """More of the work is done, in the task's unit (bytes, unless said otherwise)."""


class Reporter(Protocol):
    """Where progress goes."""

    def task(self, name: str, total: int | None = None) -> contextlib.AbstractContextManager[Task]:
        """A task while its `with` block runs; total in bytes, None where unknown."""

    def note(self, text: str) -> None:
        """A line that the user should see: a fallback, a default that matters."""


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def advance(self, amount: int) -> None:
        self.count += amount


class Lines:
    """For logs: a line for each note, and for each task that took over half a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Task]:
        """See `Reporter`."""
        counter, start = _Counter(), time.monotonic()
        yield counter
        if (seconds := time.monotonic() - start) > 0.5:
            size = f", {human(counter.count)}" if counter.count else ""
            self.note(f"{name}: done in {seconds:.1f} s{size}")

    def note(self, text: str) -> None:
        """See `Reporter`."""
        with self._lock:
            print(text, file=self._stream, flush=True)


class Silent:
    """Says nothing; for tests and for `--quiet`."""

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Task]:
        """See `Reporter`."""
        yield _Counter()

    def note(self, text: str) -> None:
        """See `Reporter`."""


def human(size: int) -> str:
    """Bytes for people: 1.5 MB (powers of ten, as registries and disks count)."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
