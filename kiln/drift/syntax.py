"""Modules, classes and functions of a source as syntax; read, never run.

The source is hostile input. What cannot be parsed says why in `Module.why`; nothing here
raises for what a file contains.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kiln.drift.bindings import (
    DEFINITIONS,
    FUNCTIONS,
    Binding,
    FunctionNode,
    Scope,
    assigned,
    bindings,
    blocks,
    dotted,
    first_parameter,
    own_nodes,
)

_DYNAMIC = re.compile(rb"setattr\(\s*(?:self|cls)\b|\b(?:self|cls)\.__dict__|vars\((?:self|cls)\)")


@dataclass(eq=False)
class Module:
    """A module of a source. why: why it could not be parsed; then `node` is empty."""

    name: str
    path: str
    node: ast.Module
    data: bytes = b""
    why: str = ""

    @cached_property
    def lines(self) -> list[bytes]:
        """Its lines; line 1 is lines[0]."""
        return self.data.split(b"\n")

    @property
    def package(self) -> str:
        """What relative imports start from."""
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    @cached_property
    def scope(self) -> Scope:
        """Its names."""
        return bindings(self.node)

    @cached_property
    def stars(self) -> tuple[ast.ImportFrom, ...]:
        """Its `from x import *`."""
        nodes = own_nodes(self.node)
        return tuple(n for n in nodes if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")

    @cached_property
    def classes(self) -> dict[ast.ClassDef, Class]:
        """Every class in it, nested ones too."""
        found: dict[ast.ClassDef, Class] = {}
        todo: list[tuple[ast.AST, str]] = [(self.node, "")]
        while todo:
            node, prefix = todo.pop()
            for child in blocks(node):
                inner = prefix
                if isinstance(child, DEFINITIONS):
                    inner = f"{prefix}{child.name}."
                    if isinstance(child, ast.ClassDef):
                        found[child] = Class(self, child, prefix + child.name)
                todo.append((child, inner))
        return found


@dataclass(eq=False)
class Function:
    """A function or method. owner: the class in whose body it stands."""

    module: Module
    node: FunctionNode
    owner: Class | None
    qualname: str

    def __str__(self) -> str:
        return f"{self.module.name}.{self.qualname}"

    @property
    def decorators(self) -> tuple[str, ...]:
        """Their names without arguments, "functools.cache"."""
        return tuple(
            dotted(d.func if isinstance(d, ast.Call) else d) for d in self.node.decorator_list
        )


@dataclass(frozen=True, eq=False)
class Member:
    """What a class or its methods bind. function: the method, or the one that assigns it."""

    binding: Binding
    owner: Class
    function: Function | None = None
    instance: bool = False


@dataclass(eq=False)
class Class:
    """A class of a module."""

    module: Module
    node: ast.ClassDef
    qualname: str

    def __str__(self) -> str:
        return f"{self.module.name}.{self.qualname}"

    @cached_property
    def members(self) -> Mapping[str, tuple[Member, ...]]:
        """Its own: methods, class attributes, and what its methods assign to self."""
        found: dict[str, list[Member]] = {}
        methods: list[Function] = []
        for name, bound in bindings(self.node).items():
            for binding in bound:
                function = None
                if isinstance(binding.node, FUNCTIONS):
                    function = Function(self.module, binding.node, self, f"{self.qualname}.{name}")
                    methods.append(function)
                found.setdefault(name, []).append(Member(binding, self, function))
        for function in methods:
            receiver = first_parameter(function.node)
            if receiver:
                for name, binding in assigned(function.node, receiver):
                    found.setdefault(name, []).append(Member(binding, self, function, True))
        return {name: tuple(members) for name, members in found.items()}

    def method(self, name: str) -> Function | None:
        """Its own method of that name; None if there is none, or more than one."""
        found = [m.function for m in self.members.get(name, ()) if not m.instance and m.function]
        found = [f for f in found if not {"overload", "typing.overload"} & set(f.decorators)]
        found = [
            f for f in found if not any(d.endswith((".setter", ".deleter")) for d in f.decorators)
        ]
        return found[0] if len(found) == 1 else None

    @property
    def is_protocol(self) -> bool:
        """Whether it is a typing.Protocol itself."""
        bases = (b.value if isinstance(b, ast.Subscript) else b for b in self.node.bases)
        return "Protocol" in {dotted(base).rpartition(".")[2] for base in bases}

    def quotes(self, name: str) -> bool:
        """Whether the name stands in its text as a text."""
        return any(f"{quote}{name}{quote}".encode() in self._text for quote in "\"'")

    @cached_property
    def _text(self) -> bytes:
        return b"\n".join(self.module.lines[self.node.lineno - 1 : self.node.end_lineno])

    @cached_property
    def dynamic(self) -> bool:
        """Whether it may have attributes that cannot be seen in its text."""
        if {"__getattr__", "__getattribute__", "__new__"} & self.members.keys():
            return True
        if _DYNAMIC.search(self._text):
            return True
        return any(keyword.arg == "metaclass" for keyword in self.node.keywords)


def imported(node: ast.ImportFrom, module: Module) -> str:
    """The dotted name that `from ... import` means in a module, "" if it leaves the top."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    if node.level > len(parts):
        return ""
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base
