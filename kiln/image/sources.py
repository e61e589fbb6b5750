"""What layers are made of: the nodes that turn locked files into trees and wheels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from packaging.utils import canonicalize_name

from kiln.canonical import JSON, Digest, digest
from kiln.compile.bytecode import BYTECODE
from kiln.compile.component import COMPONENT, built_name
from kiln.compile.root import root_inputs
from kiln.graph.action import Input, Locked, Node, Output
from kiln.image.files import FILES
from kiln.layer.system import SYSTEM, parameters
from kiln.layer.tools import TOOLS
from kiln.lock.model import Closure, Deb, Local, Resolved, Wheel
from kiln.pins.load import Project
from kiln.pins.model import BuildRoot, Pin, Recipe
from kiln.pins.patch import PatchFile, read_series
from kiln.source.deb import DEB
from kiln.source.patch import PATCH
from kiln.source.relabel import RELABEL, relabelled_filename
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


def locked(file: Wheel | Deb) -> Locked:
    """A file of the lock as an input."""
    name = file.file if isinstance(file, Wheel) else file.path.rpartition("/")[2]
    return Locked(Digest(file.sha256, file.size), name, file)


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
    """The sources of one pin's image. `nodes` grows as they are asked for."""

    def __init__(
        self,
        project: Project,
        name: str,
        pin: Pin,
        recipe: Recipe,
        resolved: Resolved,
        local: Local,
    ) -> None:
        self._project, self._pin, self._recipe = project, pin, recipe
        self._resolved, self._local = resolved, local
        self._closure = resolved.closures["image"]
        self._debs_done: dict[str, str] = {}
        self.install = install_of(recipe)
        self.vllm, self.nodes = vllm_wheel(pin, resolved)
        self.wheel_records = self._closure.wheels
        self.wheels = [
            WheelSource(f"wheel:{w.name}", w.name, w.file, locked(w), w.size)
            for w in self.wheel_records
        ]
        self.groups = tuple(recipe.debian.groups) if recipe.debian else ()
        self.components = [self._component(name) for name in pin.components]

    # ---- Debian --------------------------------------------------------------------------

    def debs(self, group: str) -> list[tuple[str, Deb]]:
        """The packages of a group with the nodes of their trees."""
        return [(self._deb(deb).node, deb) for deb in self._closure.debs if deb.group == group]

    def _deb(self, deb: Deb) -> Output:
        """The tree of a package. Roots and the image share a package of one hash."""
        if deb.sha256 not in self._debs_done:
            taken = any(node.name == f"deb:{deb.name}" for node in self.nodes)
            name = f"deb:{deb.name}" if not taken else f"deb:{deb.name}_{deb.version}"
            self.nodes.append(Node(name, DEB, {"deb": locked(deb)}, {}, deb.size))
            self._debs_done[deb.sha256] = name
        return Output(self._debs_done[deb.sha256])

    def system(self) -> tuple[str, ...]:
        """The nodes with what maintainer scripts would have made; () without Debian."""
        if not self.groups or self._recipe.runtime is None:
            return ()
        trees: dict[str, Input] = {
            f"tree:{deb.name}": self._deb(deb) for deb in self._closure.debs
        }
        debs: dict[str, Input] = {f"deb:{deb.name}": locked(deb) for deb in self._closure.debs}
        params = parameters(self._recipe.runtime)
        self.nodes.append(Node("system", SYSTEM, {**trees, **debs}, params))
        self.nodes.append(Node("system-tools", TOOLS, {**trees, "system": Output("system")}))
        return ("system", "system-tools")

    # ---- bytecode ------------------------------------------------------------------------

    def _interpreter(self) -> tuple[dict[str, Input], dict[str, JSON]]:
        """The image's own Python as a root: the Debian groups up to the one that has it."""
        trees: list[Input] = []
        for group in self.groups:
            debs = self.debs(group)
            trees += [Output(node) for node, _ in debs]
            if any(deb.name.startswith("python3.") for _, deb in debs):
                break
        return root_inputs(trees, [], self.install)

    def debian_bytecode(self, group: str) -> str | None:
        """Bytecode of a group's Python modules (the standard library), if it has any."""
        debs = [(node, deb) for node, deb in self.debs(group) if "python" in deb.name]
        if not debs:
            return None
        return self._bytecode(
            f"bytecode:debian-{group}",
            {f"source/{at:04d}": Output(node) for at, (node, _) in enumerate(debs)},
            {"kind": "tree"},
            sum(deb.size for _, deb in debs),
        )

    def bytecode(self, wheel: WheelSource, checked: bool = False) -> str | None:
        """Bytecode of a wheel's modules; None for an image without a Python of its own."""
        return self._bytecode(
            f"bytecode:{wheel.package}",
            {"source/0000": wheel.input},
            {"kind": "wheel", "filename": wheel.filename},
            wheel.size,
            checked,
        )

    def patched_bytecode(self) -> str | None:
        """Bytecode of the patched files."""
        return self._bytecode(
            "bytecode:patches", {"source/0000": Output("patch")}, {"kind": "tree"}, 0, True
        )

    def _bytecode(
        self,
        name: str,
        sources: Mapping[str, Input],
        params: Mapping[str, JSON],
        size: int,
        checked: bool = False,
    ) -> str | None:
        if not self.groups:
            return None
        inputs, root = self._interpreter()
        install: JSON = msgspec.to_builtins(self.install)
        self.nodes.append(
            Node(
                name,
                BYTECODE,
                {**inputs, **sources},
                {**params, "root": root, "install": install, "checked": checked},
                size,
            )
        )
        return name

    # ---- patches and components ----------------------------------------------------------

    def patched(self) -> str:
        """The node with the files that the series changes."""
        series = read_series(self._project, self._pin.patches, self._pin.vllm.version)
        params: dict[str, JSON] = {
            "filename": self.vllm.filename,
            "install": msgspec.to_builtins(self.install),
            "series": [msgspec.to_builtins(patch) for patch in self._local.patches],
        }
        inputs: dict[str, Input] = {"wheel": self.vllm.input, **patch_inputs(series)}
        self.nodes.append(Node("patch", PATCH, inputs, params, self.vllm.size))
        return "patch"

    def _component(self, name: str) -> WheelSource:
        recipe = self._project.component(name)
        version = self._pin.components[name]
        closure = self._resolved.closures[f"build/{name}"]
        sdist = closure.sources[0]
        inputs, root = self.root(closure, self._project.build_root(recipe.root))
        inputs |= {"sdist": locked(sdist), "recipe": self.recipe_files(name)}
        params: dict[str, JSON] = {
            "name": canonicalize_name(name),
            "version": version,
            "sdist": sdist.file,
            "script": recipe.script,
            "root": root,
            "expect": list(recipe.expect),
        }
        node = Node(f"component:{name}", COMPONENT, inputs, params, sdist.size)
        self.nodes.append(node)
        filename = built_name(name, version)
        return WheelSource(f"wheel:{name}", name, filename, Output(node.name), sdist.size)

    def root(
        self, closure: Closure, recipe: BuildRoot
    ) -> tuple[dict[str, Input], dict[str, JSON]]:
        """A build root as inputs and the parameter "root"."""
        install = Install(
            site=recipe.site.strip("/"),
            scripts="usr/local/bin",
            data="usr/local",
            interpreter=recipe.interpreter,
        )
        wheels: list[tuple[str, Input]] = [(w.file, locked(w)) for w in closure.wheels]
        return root_inputs([self._deb(deb) for deb in closure.debs], wheels, install)

    def recipe_files(self, name: str) -> Output:
        """The scripts of a component or model ("models/<name>") as a tree."""
        folder = self._project.root / "build" / name
        files = {
            path.name: path.read_text()
            for path in sorted(folder.iterdir())
            if path.is_file() and path.name != "recipe.yaml"
        }
        node = Node(f"recipe:{name}", FILES, {}, {"files": files})
        self.nodes.append(node)
        return Output(node.name)
