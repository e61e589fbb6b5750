"""Run what a plan leaves to do: fetch in parallel, then each action as it can.

A node runs when its inputs are there, unless its key (known only then, after
early cut-off) already has a result. One failure stops new work, lets running
work end, and is raised; what was finished stays in the table.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from kiln.canonical import Digest
from kiln.graph.action import Context, Graph, Locked, Node, resolve
from kiln.graph.plan import lookup, make_plan
from kiln.progress import Reporter
from kiln.store import Store


class Fetcher(Protocol):
    """Brings locked files into the store."""

    def fetch(self, wanted: Sequence[Locked]) -> None:
        """Have all of these in the store, verified. Raises kiln errors (Problems)."""


Results = Mapping[str, Mapping[str, Digest]]


def build(
    store: Store,
    graph: Graph,
    goal: str,
    fetcher: Fetcher,
    reporter: Reporter,
    jobs: int | None = None,
) -> Results:
    """Make `goal`; returns the outputs of every node of it, by node name."""
    with store.building():
        plan = make_plan(store, graph, goal)
        results: dict[str, Mapping[str, Digest]] = dict(plan.results)
        todo = [graph[action.name] for action in plan.todo]
        if todo:
            fetcher.fetch(plan.fetches)
            _run_all(store, todo, results, reporter, jobs or os.cpu_count() or 1)
        return results


def _run_all(
    store: Store,
    todo: list[Node],
    results: dict[str, Mapping[str, Digest]],
    reporter: Reporter,
    jobs: int,
) -> None:
    waiting = {node.name: node for node in todo}
    heights = _heights(todo)
    running: dict[Future[Mapping[str, Digest]], str] = {}
    failure: BaseException | None = None
    with ThreadPoolExecutor(jobs, thread_name_prefix="kiln") as pool:
        while running or (waiting and failure is None):
            if failure is None:
                ready = [n for n in waiting.values() if resolve(n, results) is not None]
                # What most has to wait for, then the longest: so that nothing runs alone
                # at the end.
                ready.sort(key=lambda node: (-heights[node.name], -node.estimate))
                for node in ready[: jobs - len(running)]:
                    del waiting[node.name]
                    running[pool.submit(_run_one, store, node, dict(results), reporter)] = node.name
            try:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt as interrupt:
                failure = failure or interrupt
                reporter.note(
                    f"interrupted: {', '.join(sorted(running.values()))} may end first; "
                    "Ctrl-C again kills at once"
                )
                # A kill loses no more than what runs: the store bears one at any point.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                continue
            for future in done:
                name = running.pop(future)
                try:
                    results[name] = future.result()
                except BaseException as error:
                    failure = failure or error
    if failure is not None:
        raise failure


def _heights(todo: Sequence[Node]) -> dict[str, int]:
    """Of each node, how many have to run one after the other behind it; `todo` is in order."""
    heights = {node.name: 0 for node in todo}
    for node in reversed(todo):
        for name in node.depends() & heights.keys():
            heights[name] = max(heights[name], heights[node.name] + 1)
    return heights


def _run_one(
    store: Store, node: Node, results: Results, reporter: Reporter
) -> Mapping[str, Digest]:
    inputs = resolve(node, results)
    assert inputs is not None
    key = node.key(inputs)
    if (cached := lookup(store, key)) is not None:
        return cached
    tmp = Path(tempfile.mkdtemp(prefix="act-", dir=store.blobs.tmp))
    try:
        with reporter.task(node.name, node.estimate or None):
            outputs = node.step.run(Context(store, inputs, node.params, reporter, tmp))
        store.actions.put(key, node.name, node.canonical(inputs), outputs)
        return outputs
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
