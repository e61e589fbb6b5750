"""The budgets, and the table that docs/speed.md shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "MB", "MB/s", "x"]


@dataclass(frozen=True)
class Budget:
    """What DESIGN.md, "Budgets", asks for. sense: the limit is the first value that is
    too much ("under"), or the last that is enough ("at least")."""

    sense: Literal["under", "at least"]
    limit: float
    unit: Unit

    def __str__(self) -> str:
        return f"{self.sense} {amount(self.limit, self.unit)}"

    def holds(self, value: float) -> bool:
        """Whether a measured value, in the budget's unit, keeps it."""
        return value < self.limit if self.sense == "under" else value >= self.limit


UNCHANGED = Budget("under", 0.3, "s")
PATCH_SECONDS = Budget("under", 2, "s")
PATCH_BYTES = Budget("under", 2, "MB")
LAYERS_SPEED = Budget("at least", 180, "MB/s")
LAYERS_MEMORY = Budget("under", 500, "MB")
WHOLE = Budget("at least", 6, "x")
DRIFT = Budget("under", 5, "s")


@dataclass(frozen=True)
class Row:
    """One line of the table. kiln, docker: what was measured, in `unit`; None: nothing was.

    detail: what the figures are made of.
    """

    work: str
    unit: Unit
    kiln: float | None = None
    docker: float | None = None
    budget: Budget | None = None
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as much Docker takes."""
        return self.docker / self.kiln if self.kiln and self.docker else None

    @property
    def holds(self) -> bool | None:
        """Whether the budget is kept; None without a budget or without its value."""
        if self.budget is None:
            return None
        value = self.ratio if self.budget.unit == "x" else self.kiln
        return None if value is None else self.budget.holds(value)


HEAD = ("work", "kiln", "docker", "ratio", "budget", "kept", "detail")


def amount(value: float | None, unit: Unit) -> str:
    """A value for people: three digits where they say something, never more."""
    if value is None:
        return ""
    digits = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits}x" if unit == "x" else f"{digits} {unit}"


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    kept = {True: "yes", False: "**no**", None: ""}
    lines = [HEAD, *[("---",) * len(HEAD)]]
    for row in rows:
        lines.append(
            (
                row.work,
                amount(row.kiln, row.unit),
                amount(row.docker, row.unit),
                amount(row.ratio, "x"),
                str(row.budget or ""),
                kept[row.holds],
                row.detail,
            )
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
