"""Make a prepared pin's image: assemble its graph, and run what is left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kiln.graph.build import build
from kiln.graph.plan import make_plan
from kiln.image.assemble import GOAL, assemble
from kiln.image.oci import read_layers
from kiln.image.prepare import Prepared
from kiln.image.tools import ensure_sandbox
from kiln.lock.model import Outputs
from kiln.pins.load import Project
from kiln.progress import Reporter
from kiln.store import Store


@dataclass(frozen=True)
class Made:
    """An image that was made. ran: how many actions were not cached. listing: of a layer,
    by its name (see kiln/layer/listing.py)."""

    outputs: Outputs
    ran: int
    listing: Callable[[str], bytes]


def make(
    project: Project,
    prepared: Prepared,
    store: Store,
    reporter: Reporter,
    jobs: int | None,
) -> Made:
    """Run the pin's graph. Raises whatever an action or a fetch raises."""
    assembly = assemble(project, prepared)
    todo = make_plan(store, assembly.graph, GOAL).todo
    if todo:
        ensure_sandbox(project, prepared.lock.resolved, store, prepared.fetcher, reporter)
    results = build(store, assembly.graph, GOAL, prepared.fetcher, reporter, jobs)

    def read(layer: str, output: str) -> bytes:
        return store.blobs.read(results[f"layer:{layer}"][output].sha256)

    layers = read_layers({name: read(name, "meta") for name in assembly.layers})
    image = results[GOAL]
    outputs = Outputs(layers, image["config"], image["manifest"])
    return Made(outputs, len(todo), lambda layer: read(layer, "files"))
