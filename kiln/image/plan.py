"""What a build of a pin would do, and what it would consist of."""

from __future__ import annotations

from dataclasses import dataclass

from kiln.graph.plan import Plan, make_plan
from kiln.image.assemble import GOAL, assemble
from kiln.image.outline import Outline, outline
from kiln.image.prepare import prepare
from kiln.lock.compare import Change, difference
from kiln.lock.file import locks_path
from kiln.pins.load import Project
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Planned:
    """What `kiln plan` shows: the plan, and what is not as the lock says.

    Where no plan can be made (no lock yet, or the recipe says what is missing), `plan` is
    the outline of what a build would consist of.
    """

    pin: str
    plan: Plan | Outline
    changes: tuple[Change, ...]


def plan_pin(project: Project, name: str | None, store: Store, reporter: Reporter) -> Planned:
    """What `build_pin` would do; nothing is fetched, run or written."""
    name = name or project.pins.default
    recipe = project.recipe(project.pin(name).recipe)
    if recipe.missing or not locks_path(project.root, name).exists():
        return Planned(name, outline(project, name), ())
    prepared = prepare(project, name, store, reporter, fetch=False)
    plan = make_plan(store, assemble(project, prepared).graph, GOAL)
    old = prepared.lock.local
    changes = difference(old, prepared.local) if old is not None else ()
    return Planned(prepared.name, plan, tuple(changes))
