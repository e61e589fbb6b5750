"""Actions: one pure step, its key, and the graph that they form.

An action has the shape of the Remote Execution API: a command (mnemonic,
version of the step's code, parameters), the digests of its inputs, platform
properties, and a result of named output digests. Nothing else may influence
what comes out, so the hash of it is the key of the result.
"""

from __future__ import annotations

import graphlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kiln.canonical import JSON, Digest, dumps, sha256
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Output:
    """A reference to a named output of another node of the graph."""

    node: str
    name: str = "out"


@dataclass(frozen=True)
class Locked:
    """A locked file from outside (wheel, sdist, package): fetched before it is used.

    `source` tells the fetcher where to look (see kiln.fetch); it is not in any key.
    """

    digest: Digest
    name: str
    source: object


Input: TypeAlias = Digest | Output | Locked


@dataclass(frozen=True)
class Context:
    """What a step's function gets: where to read, where to write, what to do."""

    store: Store
    inputs: Mapping[str, Digest]
    params: Mapping[str, JSON]
    reporter: Reporter
    tmp: Path  # a folder of this run's own, removed after it

    def path(self, name: str) -> Path:
        """The file of a named input."""
        return self.store.blobs.path(self.inputs[name].sha256)


Run: TypeAlias = Callable[[Context], Mapping[str, Digest]]


@dataclass(frozen=True)
class Step:
    """A kind of action: its mnemonic, the version of its code, and the code.

    code: a function, or where one is, "module:function" (see kiln/graph/steps.py).
    """

    mnemonic: str
    version: int
    code: Run | str

    def run(self, context: Context) -> Mapping[str, Digest]:
        """Run the code."""
        if isinstance(self.code, str):
            module, _, name = self.code.partition(":")
            code: Run = getattr(importlib.import_module(module), name)
            return code(context)
        return self.code(context)


@dataclass(frozen=True)
class Node:
    """One action in a graph, with inputs that may still have to be made.

    name: unique and for people, "layer:torch". estimate: bytes it will read or
    write, for the plan.
    """

    name: str
    step: Step
    inputs: Mapping[str, Input] = field(default_factory=dict)
    params: Mapping[str, JSON] = field(default_factory=dict)
    estimate: int = 0

    def canonical(self, inputs: Mapping[str, Digest]) -> bytes:
        """The action's canonical bytes once all inputs are known."""
        return dumps(
            {
                "mnemonic": self.step.mnemonic,
                "version": self.step.version,
                "params": self.params,
                "inputs": {n: {"sha256": d.sha256, "size": d.size} for n, d in inputs.items()},
            }
        )

    def key(self, inputs: Mapping[str, Digest]) -> str:
        """Hex sha256 of `canonical`."""
        return sha256(self.canonical(inputs))

    def depends(self) -> set[str]:
        """Names of the nodes whose outputs this one reads."""
        return {i.node for i in self.inputs.values() if isinstance(i, Output)}

    def locked(self) -> list[Locked]:
        """The files from outside that this one reads."""
        return [i for i in self.inputs.values() if isinstance(i, Locked)]


class Graph:
    """Nodes by name, in an order in which each stands behind what it needs."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[str, Node] = {}
        for node in nodes:
            if node.name in self.nodes:
                raise ValueError(f"two nodes are called {node.name!r}")
            self.nodes[node.name] = node
        sorter = graphlib.TopologicalSorter({n.name: n.depends() for n in self.nodes.values()})
        self.order = list(sorter.static_order())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def needed_for(self, goal: str) -> list[str]:
        """The names of `goal` and all it stands on, in order."""
        wanted, todo = set(), [goal]
        while todo:
            name = todo.pop()
            if name not in wanted:
                wanted.add(name)
                todo += self.nodes[name].depends()
        return [name for name in self.order if name in wanted]


def resolve(node: Node, results: Mapping[str, Mapping[str, Digest]]) -> dict[str, Digest] | None:
    """The node's input digests, or None while a node before it has no result yet."""
    found: dict[str, Digest] = {}
    for name, item in node.inputs.items():
        if isinstance(item, Digest):
            found[name] = item
        elif isinstance(item, Locked):
            found[name] = item.digest
        else:
            outputs = results.get(item.node)
            if outputs is None:
                return None
            found[name] = outputs[item.name]
    return found
