"""What expressions of a source can stand for, and where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from kiln.drift.bindings import Binding, Scope, ScopeNode, bindings
from kiln.drift.syntax import Class, Function, Module


class Special(Enum):
    """EXTERNAL: from outside vLLM, or a plain value. NONE: None itself. OPAQUE: it exists; no
    more is known."""

    EXTERNAL = "external"
    NONE = "none"
    OPAQUE = "opaque"


EXTERNAL, NONE, OPAQUE = Special.EXTERNAL, Special.NONE, Special.OPAQUE


@dataclass(frozen=True)
class ModuleValue:
    """A module or package of vLLM."""

    name: str


@dataclass(frozen=True)
class ClassValue:
    """A class itself."""

    cls: Class


@dataclass(frozen=True)
class Instance:
    """An object of one of these classes."""

    classes: tuple[Class, ...]


@dataclass(frozen=True)
class FunctionValue:
    """A function. bound: its receiver is passed already."""

    function: Function
    bound: bool


@dataclass(frozen=True)
class Missing:
    """Certainly not there. where: the module or class, in full."""

    where: str


Value: TypeAlias = ModuleValue | ClassValue | Instance | FunctionValue | Special
Result: TypeAlias = Value | Missing | None


@dataclass(frozen=True, eq=False)
class Layer:
    """The scope of one function around an expression. node: None where this source has no
    such function. extra: what a patch's lines bind in it. given: what is known of its
    parameters besides their annotations."""

    node: ScopeNode | None
    owner: Class | None
    extra: Scope
    given: Mapping[str, Value]

    @cached_property
    def scope(self) -> Scope:
        """What the source's own lines bind in it."""
        return {} if self.node is None else bindings(self.node)


@dataclass(frozen=True, eq=False)
class Frame:
    """Where an expression stands. layers: from the innermost function outwards. extra:
    what a patch's lines bind in the module. hidden: names that comprehensions and lambdas
    around it bind."""

    module: Module
    layers: tuple[Layer, ...] = ()
    extra: Scope = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def find(self, name: str) -> tuple[Layer | Module | None, tuple[Binding, ...]]:
        """Where a name is bound, and how; None for builtins and unknown names."""
        for layer in self.layers:
            if found := (*layer.extra.get(name, ()), *layer.scope.get(name, ())):
                return layer, found
        if found := (*self.extra.get(name, ()), *self.module.scope.get(name, ())):
            return self.module, found
        return None, ()


def reduce(values: Iterable[Result]) -> Result:
    """What several bindings of one name agree on: one value, or one of several classes.
    None does not count beside others: it stands for what is not there yet, or not here."""
    real: list[Value] = []
    for value in values:
        if value is None or value is OPAQUE or isinstance(value, Missing):
            return OPAQUE
        if value is not NONE and value not in real:
            real.append(value)
    if len(real) > 1:
        return union(real) or OPAQUE
    return real[0] if real else NONE


def union(values: Iterable[Value | None]) -> Value | None:
    """One of several classes; None if one of them is not known, or not vLLM's."""
    classes: list[Class] = []
    plain = 0
    for value in values:
        if isinstance(value, Instance):
            classes += [c for c in value.classes if c not in classes]
        elif value is EXTERNAL:
            plain += 1
        elif value is not NONE:
            return None
    if classes and plain:
        return None
    return Instance(tuple(classes)) if classes else EXTERNAL
