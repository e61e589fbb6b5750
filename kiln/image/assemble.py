"""The graph of a pin: from locked files to the image's manifest.

Layers stand in the order of how often they change: Debian (base, interpreter,
compiler, system files), torch, the other wheels, vLLM as it came, one patch layer,
components built from source, configuration. A Python patch moves the two last but one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from kiln.canonical import JSON
from kiln.graph.action import Graph, Input, Node, Output
from kiln.image.files import FILES
from kiln.image.identity import MANIFEST_PATH, Identity, labels, manifest_json
from kiln.image.oci import IMAGE
from kiln.image.sources import Sources, WheelSource
from kiln.layer.step import LAYER
from kiln.lock.model import Local, Resolved
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe, Runtime

GOAL = "image"


@dataclass(frozen=True)
class Assembly:
    """A pin's graph. layers: names, lowest first; each is the node "layer:<name>"."""

    graph: Graph
    layers: tuple[str, ...]


@dataclass
class _Layer:
    """The sources of one layer, in order; inputs by the names that the params use."""

    name: str
    inputs: dict[str, Input] = field(default_factory=dict)
    sources: list[Mapping[str, JSON]] = field(default_factory=list)
    estimate: int = 0

    def tree(self, node: str, size: int = 0) -> None:
        self.inputs[node] = Output(node)
        self.sources.append({"input": node, "kind": "tree"})
        self.estimate += size

    def wheel(self, source: WheelSource, install: Mapping[str, JSON]) -> None:
        self.inputs[source.name] = source.input
        self.sources.append(
            {
                "input": source.name,
                "kind": "wheel",
                "filename": source.filename,
                "install": install,
            }
        )
        self.estimate += source.size

    def node(self, winners: Mapping[str, str]) -> Node:
        params: dict[str, JSON] = {"sources": self.sources, "winners": dict(winners)}
        return Node(f"layer:{self.name}", LAYER, self.inputs, params, self.estimate)


def assemble(
    project: Project, name: str, pin: Pin, resolved: Resolved, local: Local, identity: Identity
) -> Assembly:
    """The graph of this pin's image. Its goal is the node `GOAL`."""
    recipe = project.recipe(pin.recipe)
    sources = Sources(project, name, pin, recipe, resolved, local)
    layers = [layer for layer in _layers(sources, pin, recipe, identity, local) if layer.sources]
    nodes = [*sources.nodes, *(layer.node(recipe.wheels.winners) for layer in layers)]
    names = tuple(layer.name for layer in layers)
    nodes.append(_image(recipe, identity, names))
    return Assembly(Graph(nodes), names)


def _layers(
    sources: Sources, pin: Pin, recipe: Recipe, identity: Identity, local: Local
) -> Iterator[_Layer]:
    install = msgspec.to_builtins(sources.install)
    for group in sources.groups:
        layer = _Layer(group)
        for node, deb in sources.debs(group):
            layer.tree(node, deb.size)
        if (bytecode := sources.debian_bytecode(group)) is not None:
            layer.tree(bytecode)
        yield layer
    layer = _Layer("system")
    for node in sources.system():
        layer.tree(node)
    yield layer

    rest = {wheel.name for wheel in sources.wheels}
    named = {layer: set(names) for layer, names in recipe.wheels.layers.items()}
    vllm = sources.vllm
    chosen = set().union(*named.values()) | {vllm.package}
    for title, packages in [*named.items(), ("wheels", rest - chosen)]:
        layer = _Layer(title)
        for wheel in sources.wheels:
            if wheel.package in packages and wheel.package != vllm.package:
                layer.wheel(wheel, install)
                _add_bytecode(layer, sources.bytecode(wheel))
        yield layer

    layer = _Layer("vllm")
    layer.wheel(vllm, install)
    _add_bytecode(layer, sources.bytecode(vllm, checked=True))
    yield layer

    if local.patches:
        layer = _Layer("patches")
        layer.tree(sources.patched())
        _add_bytecode(layer, sources.patched_bytecode())
        yield layer

    for built in sources.components:
        layer = _Layer(built.package)
        layer.wheel(built, install)
        _add_bytecode(layer, sources.bytecode(built))
        yield layer

    layer = _Layer("configuration")
    text = manifest_json(
        identity, local, sources.wheel_records, sources.install.site, pin.components
    ).decode()
    sources.nodes.append(Node("files:configuration", FILES, {}, {"files": {MANIFEST_PATH: text}}))
    layer.tree("files:configuration")
    yield layer


def _add_bytecode(layer: _Layer, node: str | None) -> None:
    if node is not None:
        layer.tree(node)


def _image(recipe: Recipe, identity: Identity, layers: tuple[str, ...]) -> Node:
    inputs: dict[str, Input] = {}
    for name in layers:
        inputs[name] = Output(f"layer:{name}", "meta")
        inputs[f"files:{name}"] = Output(f"layer:{name}", "files")
    texts = labels(identity, recipe)
    params: dict[str, JSON] = {
        "layers": list(layers),
        "runtime": _runtime(recipe.runtime, texts),
        "annotations": dict(texts),
        "architecture": recipe.architecture,
        "compression": recipe.compression,
        "winners": dict(recipe.wheels.winners),
    }
    return Node(GOAL, IMAGE, inputs, params)


def _runtime(runtime: Runtime | None, texts: Mapping[str, str]) -> dict[str, JSON]:
    """The `config` object of the image config (config.md of the image spec)."""
    if runtime is None:
        return {"Labels": dict(texts)}
    config: dict[str, JSON] = {
        "Entrypoint": list(runtime.entrypoint),
        "Env": [f"{key}={value}" for key, value in sorted(runtime.env.items())],
        "User": runtime.user,
        "WorkingDir": runtime.workdir,
        "Labels": dict(texts),
        "Volumes": {runtime.cache: {}},
        "StopSignal": "SIGTERM",
    }
    if runtime.command:
        config["Cmd"] = list(runtime.command)
    if runtime.ports:
        config["ExposedPorts"] = {port: {} for port in runtime.ports}
    return config

