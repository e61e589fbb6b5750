"""What layers are made of: the nodes that turn locked files into trees and wheels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from packaging.utils import canonicalize_name

from kiln.canonical import JSON, digest
from kiln.compile.component import built_name
from kiln.compile.root import root_inputs
from kiln.graph.action import Input, Locked, Node, Output
from kiln.graph.steps import BYTECODE, COMPONENT, PATCH, RELABEL, SYSTEM, TOOLS
from kiln.image.roots import Roots, locked
from kiln.layer.system import parameters
from kiln.lock.model import LINK, Deb, Local, Resolved
from kiln.pins.load import Project
from kiln.pins.model import Pin, Recipe
from kiln.pins.patch import PatchFile, read_series
from kiln.source.pycache import cache_tag
from kiln.source.relabel import relabelled_filename
from kiln.source.wheel import Install


@dataclass(frozen=True)
class WheelSource:
    """A wheel on its way into a layer. name: of the input, in params and notes."""

    name: str
    package: str
    filename: str
    input: Input
    size: int


def install_of(recipe: Recipe) -> Install:
    """Where the recipe's Python has its packages, as paths inside a layer."""
    assert recipe.python is not None, "a recipe without Python is not assembled"
    python = recipe.python
    return Install(
        site=python.site.strip("/"),
        scripts=python.scripts.strip("/"),
        data=python.scripts.strip("/").rpartition("/")[0],
        interpreter=python.interpreter,
    )


def vllm_wheel(pin: Pin, resolved: Resolved) -> tuple[WheelSource, list[Node]]:
    """The pin's vLLM wheel, relabelled where the pin says so, and the node for that."""
    package = canonicalize_name(pin.vllm.wheel.partition("==")[0])
    record = next(w for w in resolved.closures["image"].wheels if w.name == package)
    source = WheelSource(f"wheel:{package}", package, record.file, locked(record), record.size)
    if not pin.vllm.relabel:
        return source, []
    name, _, version = pin.vllm.relabel.partition("==")
    filename = relabelled_filename(record.file, name, version)
    params: dict[str, JSON] = {"filename": record.file, "name": name, "version": version}
    node = Node(f"relabel:{package}", RELABEL, {"wheel": source.input}, params, record.size)
    return WheelSource(f"wheel:{name}", package, filename, Output(node.name), record.size), [node]


def patch_inputs(series: Sequence[PatchFile]) -> dict[str, Input]:
    """The patches as inputs of PATCH and SERIES; they carry their bytes."""
    return {
        f"patch:{patch.id}": Locked(digest(patch.data), patch.file or patch.id, patch.data)
        for patch in series
    }


class Sources:
    """The sources of one pin's image. `roots.nodes` grows as they are asked for."""

    def __init__(
        self, project: Project, pin: Pin, recipe: Recipe, resolved: Resolved, local: Local
    ) -> None:
        self._pin, self._recipe, self._resolved, self._local = pin, recipe, resolved, local
        self.roots = Roots(project)
        self.closure = resolved.closures["image"]
        self.install = install_of(recipe)
        self._install: dict[str, JSON] = msgspec.to_builtins(self.install)
        self.vllm, nodes = vllm_wheel(pin, resolved)
        self.roots.nodes += nodes
        self.wheels = [
            WheelSource(f"wheel:{w.name}", w.name, w.file, locked(w), w.size)
            for w in self.closure.wheels
        ]
        self.groups = tuple(recipe.debian.groups) if recipe.debian else ()
        self._interpreter = self._find_interpreter()

    # ---- Debian --------------------------------------------------------------------------

    def debs(self, group: str) -> list[tuple[str, Deb]]:
        """The packages of a group, each with the node of its tree."""
        debs = [deb for deb in self.closure.debs if deb.group == group]
        return [(self.roots.deb(deb).node, deb) for deb in debs]

    def system(self) -> tuple[str, ...]:
        """The nodes with what maintainer scripts would have made; () without Debian."""
        if not self.groups or self._recipe.runtime is None:
            return ()
        trees: dict[str, Input] = {
            f"tree:{deb.name}": self.roots.deb(deb) for deb in self.closure.debs
        }
        debs: dict[str, Input] = {f"deb:{deb.name}": locked(deb) for deb in self.closure.debs}
        params = parameters(self._recipe.runtime)
        system = self.roots.add(Node("system", SYSTEM, {**trees, **debs}, params))
        tools = self.roots.add(Node("system-tools", TOOLS, {**trees, "system": system}))
        return (system.node, tools.node)

    # ---- bytecode ------------------------------------------------------------------------

    def _find_interpreter(self) -> tuple[dict[str, Input], dict[str, JSON]] | None:
        """The image's own Python as a root: the Debian groups up to the one that has it."""
        trees: list[Input] = []
        for group in self.groups:
            debs = self.debs(group)
            trees += [Output(node) for node, _ in debs]
            if any(deb.name.startswith("python3.") for _, deb in debs):
                return root_inputs(trees, [], self.install)
        return None

    def deb_bytecode(self, node: str, deb: Deb) -> str | None:
        """Bytecode of a package's Python modules (the standard library), if it has any."""
        if "python" not in deb.name or deb.name.endswith("-dev"):
            return None
        return self._bytecode(deb.name, Output(node), "tree", deb.name, deb.size)

    def bytecode(self, wheel: WheelSource, checked: bool = False) -> str | None:
        """Bytecode of a wheel's modules; None for an image without a Python of its own."""
        return self._bytecode(
            wheel.package, wheel.input, "wheel", wheel.filename, wheel.size, checked
        )

    def patched_bytecode(self) -> str | None:
        """Bytecode of the patched files."""
        return self._bytecode("patches", Output("patch"), "tree", "patched files", 0, True)

    def _bytecode(
        self, name: str, source: Input, kind: str, filename: str, size: int, checked: bool = False
    ) -> str | None:
        if self._interpreter is None:
            return None
        inputs, root = self._interpreter
        params: dict[str, JSON] = {
            "kind": kind,
            "filename": filename,
            "install": self._install,
            "checked": checked,
            "root": root,
        }
        node = Node(f"bytecode:{name}", BYTECODE, {**inputs, "source": source}, params, size)
        return self.roots.add(node).node

    # ---- patches and components ----------------------------------------------------------

    @property
    def hides(self) -> bool:
        """Whether the series hides files of vLLM: takes them out, or puts links there."""
        last = {file.path: file for patch in self._local.patches for file in patch.files}
        return any(not file.post or file.mode == LINK for file in last.values())

    def patched(self) -> str:
        """The node with the files that the series changes."""
        series = read_series(self.roots.project, self._pin.patches, self._pin.vllm.version)
        params: dict[str, JSON] = {
            "filename": self.vllm.filename,
            "install": self._install,
            "series": [msgspec.to_builtins(patch) for patch in self._local.patches],
        }
        if self.hides and self._interpreter is not None:
            params["bytecode"] = cache_tag(self.install.interpreter)
        inputs: Mapping[str, Input] = {"wheel": self.vllm.input, **patch_inputs(series)}
        return self.roots.add(Node("patch", PATCH, inputs, params, self.vllm.size)).node

    def component(self, name: str) -> WheelSource:
        """A wheel built from a locked sdist."""
        project, version = self.roots.project, self._pin.components[name]
        recipe = project.component(name)
        closure = self._resolved.closures[f"build/{name}"]
        sdist = closure.sources[0]
        inputs, root = self.roots.root(closure, project.build_root(recipe.root))
        inputs |= {"sdist": locked(sdist), "recipe": self.roots.scripts(name)}
        params: dict[str, JSON] = {
            "name": canonicalize_name(name),
            "version": version,
            "sdist": sdist.file,
            "script": recipe.script,
            "root": root,
            "expect": list(recipe.expect),
        }
        out = self.roots.add(Node(f"component:{name}", COMPONENT, inputs, params, sdist.size))
        filename = built_name(name, version)
        return WheelSource(f"wheel:{name}", name, filename, out, sdist.size)
