"""The graph of a pin: from locked files to the image's manifest.

Layers stand in the order of how often they change: Debian (base, interpreter,
compiler, system files), torch, the other wheels, vLLM as it came, one patch layer,
components built from source, configuration. A Python patch moves the two last but one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kiln.canonical import JSON
from kiln.errors import BadInput, raise_problems
from kiln.graph.action import Graph, Input, Node, Output
from kiln.graph.steps import FILES, IMAGE
from kiln.image.identity import MANIFEST_PATH, Identity, labels, manifest_json
from kiln.image.prepare import Prepared
from kiln.image.sources import Sources, WheelSource
from kiln.image.stack import PATCHES
from kiln.layer import step as layer_step
from kiln.layer.step import Params, Source, TreeSource, layer_node
from kiln.lock.model import Local
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe, Runtime
from kiln.pins.yaml import Document
from kiln.source.wheel import Install

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
    install: Install
    inputs: dict[str, Input] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    estimate: int = 0

    def tree(self, node: str | None, size: int = 0, whiteouts: bool = False) -> None:
        if node is not None:
            self.inputs[node] = Output(node)
            self.sources.append(TreeSource(node, whiteouts))
            self.estimate += size

    def wheel(self, wheel: WheelSource, bytecode: str | None) -> None:
        self.inputs[wheel.name] = wheel.input
        self.sources.append(layer_step.WheelSource(wheel.name, wheel.filename, self.install))
        self.estimate += wheel.size
        self.tree(bytecode)

    def node(self, winners: Mapping[str, str]) -> Node:
        mine = {path: winner for path, winner in winners.items() if winner in self.inputs}
        params = Params(tuple(self.sources), mine)
        return layer_node(f"layer:{self.name}", self.inputs, params, self.estimate)


def assemble(project: Project, prepared: Prepared) -> Assembly:
    """The graph of a prepared pin's image. Its goal is the node `GOAL`."""
    pin, local, identity = prepared.pin, prepared.local, prepared.identity
    recipe = project.recipe(pin.recipe)
    sources = Sources(project, pin, recipe, prepared.lock.resolved, local)
    layers = [layer for layer in _layers(sources, pin, recipe, identity, local) if layer.sources]
    winners = {path: f"wheel:{winner}" for path, winner in recipe.wheels.winners.items()}
    _check_winners(winners, layers, project.recipe_document(pin.recipe))
    nodes = [*sources.roots.nodes, *(layer.node(winners) for layer in layers)]
    names = tuple(layer.name for layer in layers)
    nodes.append(_image(recipe, identity, names))
    return Assembly(Graph(nodes), names)


def _check_winners(
    winners: Mapping[str, str], layers: Sequence[_Layer], recipe: Document[Recipe]
) -> None:
    """A rule whose winner is in no layer would decide nothing, in silence."""
    known = {name for layer in layers for name in layer.inputs}
    raise_problems(
        [
            BadInput(
                "image.unknown-winner",
                f"{winner.removeprefix('wheel:')} is to win /{path}, but is not in the image",
                where=recipe.where("wheels", "winners", path),
                fix="correct the package's name, or remove the rule",
            )
            for path, winner in winners.items()
            if winner not in known
        ]
    )


def _layers(
    sources: Sources, pin: Pin, recipe: Recipe, identity: Identity, local: Local
) -> Iterator[_Layer]:
    install = sources.install
    for group in sources.groups:
        layer = _Layer(group, install)
        for node, deb in sources.debs(group):
            layer.tree(node, deb.size)
            layer.tree(sources.deb_bytecode(node, deb))
        yield layer

    layer = _Layer("system", install)
    for node in sources.system():
        layer.tree(node)
    yield layer

    vllm = sources.vllm
    named = {title: set(packages) for title, packages in recipe.wheels.layers.items()}
    chosen = set().union(*named.values()) | {vllm.package}
    rest = {wheel.package for wheel in sources.wheels} - chosen
    for title, packages in [*named.items(), ("wheels", rest)]:
        layer = _Layer(title, install)
        for wheel in sources.wheels:
            if wheel.package in packages:
                layer.wheel(wheel, sources.bytecode(wheel))
        yield layer

    layer = _Layer("vllm", install)
    layer.wheel(vllm, sources.bytecode(vllm, checked=True))
    yield layer

    if local.patches:
        layer = _Layer(PATCHES, install)
        layer.tree(sources.patched(), whiteouts=sources.hides)
        layer.tree(sources.patched_bytecode())
        yield layer

    for name in sorted(pin.components):
        component = sources.component(name)
        layer = _Layer(name, install)
        layer.wheel(component, sources.bytecode(component))
        yield layer

    text = manifest_json(identity, local, sources.closure.wheels, install.site, pin.components)
    files: dict[str, JSON] = {MANIFEST_PATH: text.decode()}
    layer = _Layer("configuration", install)
    layer.tree(sources.roots.add(Node("configuration", FILES, {}, {"files": files})).node)
    yield layer


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
