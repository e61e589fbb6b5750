"""Nodes that images, components and models share: package trees, build roots, scripts."""

from __future__ import annotations

from kiln.canonical import JSON, Digest
from kiln.compile.root import root_inputs
from kiln.graph.action import Graph, Input, Locked, Node, Output
from kiln.graph.steps import DEB, FILES, MODEL
from kiln.lock.model import Closure, Deb, Resolved, Wheel
from kiln.pins.load import Project
from kiln.pins.model import BuildRoot
from kiln.source.wheel import Install


def locked(file: Wheel | Deb) -> Locked:
    """A file of the lock as an input."""
    name = file.file if isinstance(file, Wheel) else file.path.rpartition("/")[2]
    return Locked(Digest(file.sha256, file.size), name, file)


class Roots:
    """Collects nodes. A package of one hash has one node, whoever asks for it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.nodes: list[Node] = []
        self._trees: dict[str, Output] = {}

    def add(self, node: Node) -> Output:
        """A node, and its output "out"."""
        self.nodes.append(node)
        return Output(node.name)

    def deb(self, deb: Deb) -> Output:
        """The tree of a package."""
        if deb.sha256 not in self._trees:
            name = f"deb:{deb.name}_{deb.version}"
            self._trees[deb.sha256] = self.add(Node(name, DEB, {"deb": locked(deb)}, {}, deb.size))
        return self._trees[deb.sha256]

    def root(self, closure: Closure, recipe: BuildRoot) -> tuple[dict[str, Input], dict[str, JSON]]:
        """A build root: inputs for a node, and its parameter "root"."""
        install = Install(
            site=recipe.site.strip("/"),
            scripts="usr/local/bin",
            data="usr/local",
            interpreter=recipe.interpreter,
        )
        wheels: list[tuple[str, Input]] = [(w.file, locked(w)) for w in closure.wheels]
        return root_inputs([self.deb(deb) for deb in closure.debs], wheels, install)

    def scripts(self, name: str) -> Output:
        """The files beside the recipe of a component or model ("models/<name>") as a tree."""
        folder = self.project.root / "build" / name
        files = {
            path.name: path.read_text("utf-8")
            for path in sorted(folder.iterdir())
            if path.is_file() and path.name != "recipe.yaml"
        }
        return self.add(Node(f"recipe:{name}", FILES, {}, {"files": files}))


def model_graph(project: Project, resolved: Resolved, name: str) -> tuple[Graph, str]:
    """The graph that makes a gates' model, and its goal, whose output is the model's tree."""
    roots, asset = Roots(project), project.asset(name)
    closure = resolved.closures[f"model/{name}"]
    source = closure.sources[0]
    inputs, root = roots.root(closure, project.build_root(asset.root))
    inputs |= {"wheel": locked(source), "recipe": roots.scripts(f"models/{name}")}
    params: dict[str, JSON] = {
        "name": name,
        "wheel": source.file,
        "script": asset.script,
        "root": root,
        "expect": list(asset.expect),
    }
    goal = roots.add(Node(f"model:{name}", MODEL, inputs, params, source.size))
    return Graph(roots.nodes), goal.node
