"""What the sections share: stores, the pin, and servers that start when first asked for."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kiln.errors import CannotHere
from tests.bench.comparison import Comparison, comparison
from tests.bench.registry import Registry, registry
from tests.bench.stores import Stores
from tests.bench.subject import Subject
from tests.bench.table import Row

_T = TypeVar("_T")


@dataclass
class Bench:
    """One run of the bench. machine: what it runs on, in words. rows: what was measured;
    not_run: what was not, and why."""

    folder: Path
    stores: Stores
    subject: Subject
    quick: bool
    stack: contextlib.ExitStack
    machine: list[str]
    rows: list[Row] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """How often a short work is run, for the best time."""
        return 1 if self.quick else 5

    @functools.cached_property
    def _registry(self) -> Registry | CannotHere:
        try:
            return self.stack.enter_context(registry(self.folder / "registry"))
        except CannotHere as error:
            return error

    @functools.cached_property
    def _docker(self) -> Comparison | CannotHere:
        if isinstance(self._registry, CannotHere):
            return self._registry
        self.say("docker: starting an engine and loading the base")
        try:
            made = self.stack.enter_context(
                comparison(self.folder, self.subject, self._registry, self.quick)
            )
        except CannotHere as error:
            return error
        except AssertionError as error:  # how the tests' helper says that dockerd died
            return CannotHere("bench.no-engine", "dockerd does not run here", why=str(error))
        self.machine.append(f"Docker {made.version}")
        return made

    def registry_for(self, work: str) -> Registry | None:
        """The registry, or None and a line in `not_run`."""
        return self._or_say(self._registry, work)

    def docker_for(self, work: str) -> Comparison | None:
        """The comparison, or None and a line in `not_run`."""
        return self._or_say(self._docker, work)

    def _or_say(self, found: _T | CannotHere, work: str) -> _T | None:
        if isinstance(found, CannotHere):
            self.not_run.append(f"{work}: {found}")
            return None
        return found

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        sys.stderr.write(f"bench: {text}\n")
        sys.stderr.flush()
