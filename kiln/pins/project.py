"""A project: the folder with pins.yaml, and what stands beside it.

    pins.yaml   images/<recipe>.yaml   patches/<id>/patch.yaml
    build/<component>/recipe.yaml   build/models/<name>/recipe.yaml   build/roots/<name>.yaml

Files are read, and folders listed, when they are asked for, and once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from kiln.errors import BadInput
from kiln.pins.model import Asset, BuildRoot, Component, Pin, Pins, Recipe
from kiln.pins.problems import listed, near
from kiln.pins.yaml import Document, load_document

T = TypeVar("T")
Kind = Literal["recipe", "component", "model", "build-root", "patch"]

# Where the file of each kind lies; {} is the name.
LAYOUT: dict[Kind, str] = {
    "recipe": "images/{}.yaml",
    "component": "build/{}/recipe.yaml",
    "model": "build/models/{}/recipe.yaml",
    "build-root": "build/roots/{}.yaml",
    "patch": "patches/{}/patch.yaml",
}


@dataclass(frozen=True, eq=False)
class Project:
    """One project. root: its folder. document: pins.yaml with positions."""

    root: Path
    document: Document[Pins]
    _read: dict[str, Document[Any]] = field(default_factory=dict, repr=False)
    _names: dict[Kind, list[str]] = field(default_factory=dict, repr=False)

    @property
    def pins(self) -> Pins:
        """pins.yaml as a model."""
        return self.document.value

    def where(self, *path: str | int, key: bool = False) -> str:
        """ "pins.yaml:12:5" for a path in pins.yaml; see `Document.where`."""
        return self.document.where(*path, key=key)

    def pin(self, name: str) -> Pin:
        """A pin by its name. Raises BadInput("pins.unknown-pin")."""
        if name not in self.pins.pins:
            raise unknown("pin", name, self.pins.pins, "pins.yaml")
        return self.pins.pins[name]

    def recipe(self, name: str) -> Recipe:
        """images/<name>.yaml. Raises BadInput("pins.unknown-recipe") or what is wrong in it."""
        return self.recipe_document(name).value

    def recipe_document(self, name: str) -> Document[Recipe]:
        """As `recipe`, with positions."""
        return self._document("recipe", name, Recipe)

    def component(self, name: str) -> Component:
        """build/<name>/recipe.yaml; its script and build root are there."""
        document = self._document("component", name, Component)
        self._check_made(document, document.value.root, document.value.script)
        return document.value

    def asset(self, name: str) -> Asset:
        """build/models/<name>/recipe.yaml; its script and build root are there."""
        document = self._document("model", name, Asset)
        self._check_made(document, document.value.root, document.value.script)
        return document.value

    def build_root(self, name: str) -> BuildRoot:
        """build/roots/<name>.yaml."""
        return self._document("build-root", name, BuildRoot).value

    def patch_folder(self, patch: str) -> Path:
        """patches/<id>. Raises BadInput("pins.unknown-patch") if it holds no patch.yaml."""
        return self.path("patch", patch).parent

    def names(self, kind: Kind) -> list[str]:
        """The names of all there are of a kind, sorted."""
        if kind not in self._names:
            before, after = LAYOUT[kind].split("{}")
            found = self.root.glob(LAYOUT[kind].format("*"))
            paths = (path.relative_to(self.root).as_posix() for path in found if path.is_file())
            self._names[kind] = sorted(path[len(before) : -len(after)] for path in paths)
        return self._names[kind]

    def path(self, kind: Kind, name: str) -> Path:
        """The file of a name. Raises BadInput("pins.unknown-<kind>") with what is close."""
        names = self.names(kind)
        if name not in names:
            raise unknown(kind, name, names, LAYOUT[kind].format(name))
        return self.root / LAYOUT[kind].format(name)

    def _document(self, kind: Kind, name: str, model: type[T]) -> Document[T]:
        shown = LAYOUT[kind].format(name)
        if shown not in self._read:
            self._read[shown] = load_document(self.path(kind, name), model, shown=shown)
        return self._read[shown]

    def _check_made(self, document: Document[Any], root: str, script: str) -> None:
        folder = (self.root / document.shown).parent
        if not (folder / script).is_file():
            raise BadInput(
                "pins.no-script",
                f"there is no {script} beside the recipe",
                where=document.where("script"),
            )
        if root not in (names := self.names("build-root")):
            raise unknown("build-root", root, names, document.where("root"))


def unknown(kind: str, name: str, known: Iterable[str], where: str) -> BadInput:
    """ "pins.unknown-<kind>": there is no such thing; these are close, and these there are."""
    names = list(known)
    noun = kind.replace("-", " ")
    return BadInput(
        f"pins.unknown-{kind}",
        f"there is no {noun} {name[:100]!r}",
        where=where,
        why=f"there are: {listed(names, 'none at all')}",
        fix=near(name, names) or _how_to_add(kind, name),
    )


def _how_to_add(kind: str, name: str) -> str:
    for known, pattern in LAYOUT.items():
        if kind == known:
            return f"use one of these, or add {pattern.format(name[:100])}"
    return "use one of these"
