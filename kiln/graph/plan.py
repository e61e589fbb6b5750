"""What a build would do: each action, cached or not, and why not.

Planning reads the action table and stats blobs; it runs and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kiln.canonical import Digest
from kiln.graph.action import Graph, Locked, resolve
from kiln.store import Store

State = Literal["cached", "run", "waits"]


@dataclass(frozen=True)
class Planned:
    """One action of a plan.

    state: "cached", "run" (its key is known and has no result), or "waits" (its key
    depends on an action that has to run first, and may then turn out cached).
    why: for people. bytes: estimate of what it reads or writes.
    fetch: locked files that it needs and the store lacks.
    """

    name: str
    state: State
    why: str
    bytes: int
    fetch: tuple[Locked, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All actions in order, and the results known by now."""

    actions: tuple[Planned, ...]
    results: Mapping[str, Mapping[str, Digest]]

    @property
    def todo(self) -> tuple[Planned, ...]:
        """The actions that are not cached."""
        return tuple(a for a in self.actions if a.state != "cached")

    @property
    def fetches(self) -> tuple[Locked, ...]:
        """The files to fetch, each once."""
        return tuple({f.digest: f for a in self.todo for f in a.fetch}.values())


def lookup(store: Store, key: str) -> dict[str, Digest] | None:
    """A recorded result whose blobs are all there, or None."""
    outputs = store.actions.get(key)
    return outputs if outputs is not None and _all_there(store, outputs) else None


def _all_there(store: Store, outputs: Mapping[str, Digest]) -> bool:
    return all(store.blobs.has(digest) for digest in outputs.values())


def make_plan(store: Store, graph: Graph, goal: str) -> Plan:
    """Plan `goal`: which of its actions are cached, which run, and why.

    An action whose consumers are all cached need not have its blobs any more.
    """
    order = graph.needed_for(goal)
    results: dict[str, Mapping[str, Digest]] = {}
    why: dict[str, str] = {}
    for name in order:
        node = graph[name]
        inputs = resolve(node, results)
        if inputs is None:
            why[name] = f"for {_first(sorted(node.depends() - results.keys()), 6)}"
        elif (outputs := store.actions.get(node.key(inputs))) is not None:
            results[name] = outputs
        else:
            why[name] = _difference(store, name, node.canonical(inputs))

    states: dict[str, State] = dict.fromkeys(order, "cached")
    wanted = {goal}
    for name in reversed(order):
        if name not in wanted or (name in results and _all_there(store, results[name])):
            continue
        if name in results:
            del results[name]
            why[name] = "its result was recorded, but a blob of it is gone"
        states[name] = "waits" if why[name].startswith("for ") else "run"
        wanted |= graph[name].depends()

    actions = []
    for name in order:
        node, state = graph[name], states[name]
        missing = [i for i in node.locked() if not store.blobs.has(i.digest)]
        fetch = () if state == "cached" else tuple(missing)
        actions.append(Planned(name, state, why.get(name, ""), node.estimate, fetch))
    return Plan(tuple(actions), results)


def _difference(store: Store, name: str, canonical: bytes) -> str:
    """Why an action has no result: against the last one of that name, what changed."""
    last = store.actions.last(name)
    if last is None:
        return "never run in this store"
    old, new = json.loads(last), json.loads(canonical)
    changed = [part for part in ("mnemonic", "version") if old[part] != new[part]]
    for part in ("inputs", "params"):
        names = old[part].keys() | new[part].keys()
        changed += [n for n in sorted(names) if old[part].get(n) != new[part].get(n)]
    return f"changed: {_first(changed, 4)}" if changed else "its result is gone"


def _first(names: Sequence[str], count: int) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more} more" if more > 0 else "")
