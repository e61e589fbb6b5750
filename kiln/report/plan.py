"""A plan for people and as data."""

from __future__ import annotations

from kiln.image.build import Planned
from kiln.progress import human


def plan_text(planned: Planned) -> str:
    """A table: state, action, why; then what is fetched and what differs from the lock."""
    plan = planned.plan
    width = max(len(action.name) for action in plan.actions)
    lines = [f"local: {change}" for change in planned.changes]
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
    return "\n".join(lines)


def plan_data(planned: Planned) -> dict[str, object]:
    """For --json. bytes are estimates; fetch holds the exact sizes of locked files."""
    return {
        "pin": planned.pin,
        "local_changes": [str(change) for change in planned.changes],
        "actions": [
            {
                "name": action.name,
                "state": action.state,
                "why": action.why,
                "bytes": action.bytes,
                "fetch": [file.name for file in action.fetch],
            }
            for action in planned.plan.actions
        ],
        "fetch": [
            {"name": file.name, "sha256": file.digest.sha256, "size": file.digest.size}
            for file in planned.plan.fetches
        ],
    }
