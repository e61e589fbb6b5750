"""Collecting what is wrong with one file, so that all of it is reported at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, Protocol

from kiln.errors import BadInput, KilnError, raise_problems

MAX_PROBLEMS = 50


class Placed(Protocol):
    """Something with a place in a file, counted from 1."""

    line: int
    column: int


class Collector:
    """The problems of one file. shown: its name in messages."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self._errors: list[KilnError] = []
        self._seen: set[tuple[str, str, str]] = set()

    def place(self, spot: Placed | str | None) -> str:
        """file:line:column; `spot` may be "line:column", or None for the file as such."""
        if spot is None or spot == "":
            return self.shown
        text = spot if isinstance(spot, str) else f"{spot.line}:{spot.column}"
        return f"{self.shown}:{text}"

    def add(
        self, code: str, what: str, spot: Placed | str | None, *, why: str = "", fix: str = ""
    ) -> None:
        """Note a problem. Each is kept once: an alias shows the same node many times.

        Raises all of them when there are MAX_PROBLEMS: more would help nobody.
        """
        where = self.place(spot)
        what, why, fix = printable(what), printable(why), printable(fix)
        if (code, what, where) in self._seen:
            return
        self._seen.add((code, what, where))
        self._errors.append(BadInput(code, what, where=where, why=why, fix=fix))
        if len(self._errors) >= MAX_PROBLEMS:
            self._errors.append(
                BadInput(
                    "pins.too-many-problems",
                    f"there are more problems than {MAX_PROBLEMS}; the rest is not shown",
                    where=self.shown,
                )
            )
            self.finish()

    def fatal(
        self, code: str, what: str, spot: Placed | str | None, *, why: str = "", fix: str = ""
    ) -> NoReturn:
        """Note a problem after which the file cannot be read on, and raise all."""
        self.add(code, what, spot, why=why, fix=fix)
        self.finish()
        raise AssertionError("a problem was noted, so finish() raised")

    def finish(self) -> None:
        """Raise what was noted, if anything."""
        raise_problems(self._errors)


def printable(text: str) -> str:
    """The text with what a terminal would act on (but for line ends) written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def near(name: str, known: Iterable[str]) -> str:
    """ "did you mean `x`?", or "" if nothing known is close to the name."""
    import difflib

    matches = difflib.get_close_matches(name[:100], [*known], n=2, cutoff=0.6)
    return f"did you mean {' or '.join(f'`{m}`' for m in matches)}?" if matches else ""


def listed(names: Iterable[str], none: str = "none") -> str:
    """Names in a row, sorted, for a message."""
    return ", ".join(sorted(names)) or none
