"""Live progress on a terminal: one bar for each task under way."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from kiln.progress import Task


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int) -> None:
        self._progress.advance(self._task, amount)


class Live:
    """Reporter with rich's progress display; finished tasks leave one line."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._open = 0
        atexit.register(self._progress.stop)

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None) -> Iterator[Task]:
        """A bar while the block runs."""
        self._progress.start()
        self._open += 1
        task = self._progress.add_task(name, total=total)
        try:
            yield _Bar(self._progress, task)
            elapsed = self._progress.tasks[self._progress.task_ids.index(task)].elapsed or 0.0
            if elapsed >= 1:
                self._console.print(f"{name}: done in {elapsed:.1f} s", highlight=False)
        finally:
            self._progress.remove_task(task)
            self._open -= 1
            if self._open == 0:
                self._progress.stop()

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._console.print(text, highlight=False, markup=False)
