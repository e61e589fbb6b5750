"""What is measured: the default pin, its wheels and files as the ready store has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kiln.canonical import Digest
from kiln.graph.action import resolve
from kiln.graph.plan import make_plan
from kiln.image.assemble import GOAL, assemble
from kiln.image.oci import config_bytes, manifest_bytes
from kiln.image.prepare import LockFetcher, prepare
from kiln.image.read import Image, read_image
from kiln.layer.step import Params, WheelSource
from kiln.lock.model import Outputs
from kiln.pins.load import Project, load_project
from kiln.pins.model import Pin, Recipe
from kiln.progress import Lines, Silent
from kiln.source.entry import Entry
from kiln.source.tree import read_tree
from kiln.store import Store
from tests.bench.stores import ROOT, Stores, of_layers


@dataclass(frozen=True)
class Subject:
    """The default pin in a store where all of it is made.

    wheels: file name -> blob, of all wheels of the image; that is the relabelled vLLM and
    the components built from source as well.
    """

    project: Project
    name: str
    store: Store
    outputs: Outputs
    wheels: Mapping[str, Digest]
    patched: Digest

    @property
    def pin(self) -> Pin:
        return self.project.pins.pins[self.name]

    @property
    def recipe(self) -> Recipe:
        return self.project.recipe(self.pin.recipe)

    @property
    def tar_size(self) -> int:
        """Bytes of all layers, uncompressed."""
        return sum(layer.tar_size for layer in self.outputs.layers)

    def patched_files(self) -> list[Entry]:
        """The files that the series changes, and vLLM's RECORD."""
        return read_tree(self.store.blobs.path(self.patched.sha256), "patch")

    def base(self) -> Image:
        """An image of the pin's Debian layers alone, made in the store."""
        assert self.recipe.debian is not None
        assert self.recipe.runtime is not None
        names = {*self.recipe.debian.groups, "system"}
        layers = [layer for layer in self.outputs.layers if layer.name in names]
        runtime = {"Env": [f"PATH={self.recipe.runtime.env['PATH']}"]}
        config = self.store.blobs.put(config_bytes(layers, runtime, self.recipe.architecture))
        document = manifest_bytes(layers, config, {}, self.recipe.compression)
        return read_image(self.store, self.store.blobs.put(document).sha256)


def find_subject(stores: Stores) -> Subject:
    """The default pin, with all of it in the ready store.

    What the user's store lacks is fetched and made, unmeasured: locked files (it may have
    results of files that are no longer there) and every result that a layer is made of.
    """
    stores.build(stores.ready)
    project, store = load_project(ROOT), Store(stores.ready)
    prepared = prepare(project, None, store, Silent(), fetch=False)
    assert prepared.lock.outputs is not None, "the build would have refused"
    assembly = assemble(project, prepared)
    files = {file.digest: file for node in assembly.graph.nodes.values() for file in node.locked()}
    lacking = [file for digest, file in files.items() if not store.blobs.has(digest)]
    LockFetcher(project, prepared.lock, store, Lines()).fetch(lacking)
    results = make_plan(store, assembly.graph, GOAL).results
    made = [digest for outputs in results.values() for digest in outputs.values()]
    if not all(store.blobs.has(digest) for digest in made):
        for key, name, outputs in list(store.actions.items()):
            if of_layers(name) or not all(store.blobs.has(d) for d in outputs.values()):
                store.actions.forget(key)
        stores.build(stores.ready)
    wheels: dict[str, Digest] = {}
    for layer in assembly.layers:
        node = assembly.graph[f"layer:{layer}"]
        inputs = resolve(node, results)
        assert inputs is not None, f"{node.name} is not made"
        for source in msgspec.convert(node.params, Params).sources:
            if isinstance(source, WheelSource):
                wheels[source.filename] = inputs[source.input]
    return Subject(
        project, prepared.name, store, prepared.lock.outputs, wheels, results["patch"]["out"]
    )
