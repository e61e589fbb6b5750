"""A source's Python files by path and by module, parsed when they are asked for."""

from __future__ import annotations

import ast
import contextlib
import gc
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from kiln.drift.source import Source
from kiln.drift.syntax import Module

PACKAGE = "vllm"
MAX_FILE = 2 << 20  # bytes; vLLM's longest module has 0.4 MB
_CLASS = re.compile(rb"class (\w+)[ \t]*\(([^)]{0,2000})\)")
_WORD = re.compile(rb"\w+")
_TREES: list[Tree] = []  # of the last few sources, by identity


class Tree:
    """A source's modules, parsed when they are asked for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._texts: dict[str, bytes | None] = {}
        self._modules: dict[str, Module | None] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """All paths."""
        return self.source.names()

    @cached_property
    def python(self) -> tuple[str, ...]:
        """The paths of vLLM's Python files, sorted."""
        return tuple(
            sorted(n for n in self.names if n.endswith(".py") and n.startswith(f"{PACKAGE}/"))
        )

    @cached_property
    def _packages(self) -> frozenset[str]:
        return frozenset(path.rpartition("/")[0] for path in self.python)

    def text(self, path: str) -> bytes | None:
        """A file's bytes, None where there is none."""
        if path not in self._texts:
            self._texts[path] = self.source.read(path) if path in self.names else None
        return self._texts[path]

    def path(self, name: str) -> str | None:
        """The path of a module by its dotted name."""
        base = name.replace(".", "/")
        return next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in self.names), None)

    def has(self, name: str) -> bool:
        """Whether there is a module or package (one without __init__.py too)."""
        base = name.replace(".", "/")
        return self.path(name) is not None or base in self._packages or self.compiled(name)

    def compiled(self, name: str) -> bool:
        """Whether a module is a compiled library."""
        return name.replace(".", "/") in self._compiled

    @cached_property
    def _compiled(self) -> frozenset[str]:
        """The paths of libraries up to the first dot of their names."""
        found = (path.rpartition("/") for path in self.names if path.endswith(".so"))
        return frozenset(f"{folder}/{name.partition('.')[0]}" for folder, _, name in found)

    def module(self, name: str) -> Module | None:
        """A module by its dotted name, None where there is no such file."""
        if name not in self._modules:
            path = self.path(name)
            self._modules[name] = None if path is None else self._parse(name, path)
        return self._modules[name]

    def at(self, path: str) -> Module | None:
        """The module of a path."""
        return self.module(module_name(path))

    def _parse(self, name: str, path: str) -> Module:
        data = self.text(path) or b""
        node, why = parse(data, path)
        return Module(name, path, node, data, why)

    @cached_property
    def subclasses(self) -> Mapping[bytes, Mapping[str, frozenset[bytes]]]:
        """By the text alone: name of a base -> path -> names of classes that have it."""
        return self._derived(self.python)

    def below(self, name: str) -> frozenset[str]:
        """By the text alone: the class's name, and those of all that derive from one so called."""
        found, todo = {name.encode()}, [name.encode()]
        while todo:
            for names in self.subclasses.get(todo.pop(), {}).values():
                todo += names - found
                found |= names
        return frozenset(name.decode() for name in found)

    def _derived(self, paths: Iterable[str]) -> dict[bytes, dict[str, frozenset[bytes]]]:
        found: dict[bytes, dict[str, frozenset[bytes]]] = {}
        for path in paths:
            for match in _CLASS.finditer(self.text(path) or b""):
                for base in _WORD.findall(match[2]):
                    there = found.setdefault(base, {})
                    there[path] = there.get(path, frozenset()) | {match[1]}
        return found

    def grep(self, pattern: bytes, word: bytes = b"") -> Iterator[tuple[str, re.Match[bytes]]]:
        """Where a pattern stands in the Python files; `word` is in each match, and quick
        to look for."""
        compiled = re.compile(pattern, re.MULTILINE)
        for path in self.python:
            data = self.text(path) or b""
            if word in data:
                for match in compiled.finditer(data):
                    yield path, match


class Overlay(Tree):
    """A tree with other files in it: path -> its bytes, None for one that is not there.
    parsed: modules of such files, from other trees too; grows."""

    def __init__(
        self,
        base: Tree,
        files: Mapping[str, bytes | None],
        parsed: dict[str, Module],
    ) -> None:
        super().__init__(base.source)
        self._base, self._files, self._parsed = base, dict(files), parsed

    @cached_property
    def names(self) -> frozenset[str]:
        """All paths."""
        gone = {path for path, data in self._files.items() if data is None}
        return (self._base.names | self._files.keys()) - gone

    def text(self, path: str) -> bytes | None:
        """See `Tree`."""
        return self._files[path] if path in self._files else self._base.text(path)

    @cached_property
    def subclasses(self) -> Mapping[bytes, Mapping[str, frozenset[bytes]]]:
        """See `Tree`; what a class was before is in it too."""
        mine = self._derived(path for path in self._files if path.endswith(".py"))
        return {**self._base.subclasses} | {
            base: {**self._base.subclasses.get(base, {}), **there} for base, there in mine.items()
        }

    def _parse(self, name: str, path: str) -> Module:
        if path not in self._files and (found := self._base.module(name)) is not None:
            return found
        known = self._parsed.get(path)
        if known is None or known.data != self._files[path]:
            known = self._parsed[path] = super()._parse(name, path)
        return known


@contextlib.contextmanager
def many_nodes() -> Iterator[None]:
    """No garbage collection meanwhile, and none of what was made: looking for circles in
    millions of nodes takes longer than parsing them, and syntax has next to none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def tree_of(source: Source) -> Tree:
    """The tree of a pristine source; the last few are kept, since parsing takes time."""
    for tree in _TREES:
        if tree.source is source:
            return tree
    _TREES.append(Tree(source))
    del _TREES[:-4]
    return _TREES[-1]


def parse(data: bytes, path: str) -> tuple[ast.Module, str]:
    """The syntax of a file, or an empty module and why there is none."""
    empty = ast.Module(body=[], type_ignores=[])
    if len(data) > MAX_FILE:
        return empty, f"{path} has {len(data)} bytes, more than {MAX_FILE}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data, path), ""
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return empty, f"{path} cannot be parsed: {error}"


def module_name(path: str) -> str:
    """The dotted name of a module's path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
