"""A plan for people and as data."""

from __future__ import annotations

from kiln.graph.plan import Plan
from kiln.image.outline import Outline
from kiln.image.plan import Planned
from kiln.progress import human


def plan_text(planned: Planned) -> str:
    """A table, and a summary below it."""
    changes = [f"local: {change}" for change in planned.changes]
    plan = planned.plan
    lines = _outline_lines(plan) if isinstance(plan, Outline) else _plan_lines(plan)
    return "\n".join([*changes, *lines])


def _plan_lines(plan: Plan) -> list[str]:
    """State, action, why; then what is fetched."""
    width = max(len(action.name) for action in plan.actions)
    lines = []
    for action in plan.actions:
        size = f"  ~{human(action.bytes)}" if action.bytes and action.state != "cached" else ""
        lines.append(f"{action.state:<7} {action.name:<{width}}  {action.why}{size}".rstrip())
    todo = len(plan.todo)
    total = sum(file.digest.size for file in plan.fetches)
    lines.append(
        f"{len(plan.actions)} actions: {len(plan.actions) - todo} cached, {todo} to do; "
        f"{len(plan.fetches)} files to fetch ({human(total)})"
        if todo
        else f"{len(plan.actions)} actions, all cached: nothing to do"
    )
    return lines


def _outline_lines(plan: Outline) -> list[str]:
    """State, part, what is known of it; then what is missing."""
    width = max(len(part.name) for part in plan.parts)
    lines = [
        f"{'waits':<7} {part.name:<{width}}  {part.what or part.why}".rstrip()
        for part in plan.parts
    ]
    lines.append(f"{len(plan.parts)} parts; files and sizes are unknown without a lock. Missing:")
    return [*lines, *(f"  - {text}" for text in plan.missing)]


def plan_data(planned: Planned) -> dict[str, object]:
    """For --json. bytes are estimates, null where unknown; fetch holds the exact sizes of
    locked files. missing: what a build of this pin still needs; empty where it can be built.
    """
    plan = planned.plan
    data: dict[str, object] = {
        "pin": planned.pin,
        "local_changes": [str(change) for change in planned.changes],
        "missing": [],
    }
    if isinstance(plan, Outline):
        actions: list[dict[str, object]] = [
            {"name": p.name, "state": "waits", "why": p.why, "what": p.what, "bytes": None}
            for p in plan.parts
        ]
        return data | {"missing": list(plan.missing), "actions": actions, "fetch": None}
    return data | {
        "actions": [
            {
                "name": action.name,
                "state": action.state,
                "why": action.why,
                "bytes": action.bytes,
                "fetch": [file.name for file in action.fetch],
            }
            for action in plan.actions
        ],
        "fetch": [
            {"name": file.name, "sha256": file.digest.sha256, "size": file.digest.size}
            for file in plan.fetches
        ],
    }
