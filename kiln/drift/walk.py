"""Going through the lines of a series in one file, each where it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kiln.drift.bindings import FunctionNode, arguments, dotted
from kiln.drift.frames import Definition, Frames, Place
from kiln.drift.lines import Where
from kiln.drift.values import Value

Given: TypeAlias = Mapping[str, tuple[Value | None, Value | None]]

_SWALLOWS = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))


@dataclass
class Walk:
    """Goes through the lines of a series in one file and hands what stands in them to the
    methods that a subclass has for it. soft: how many handlers of ImportError, guards for
    type checkers and defaults are around."""

    frames: Frames
    soft: int = 0
    _later: list[tuple[Definition, ...]] = field(default_factory=list)

    def found_import(self, node: ast.Import | ast.ImportFrom, at: Where) -> None:
        """An import."""

    def found_name(self, node: ast.Name, place: Place, at: Where) -> None:
        """A name that is read."""

    def found_attribute(self, node: ast.Attribute, place: Place, at: Where) -> None:
        """An attribute, read or not."""

    def found_call(self, node: ast.Call, place: Place) -> None:
        """A call; it may be an old one to which the patch adds an argument, or none of the
        patch's at all."""

    def found_text(self, node: ast.Constant, at: Where) -> None:
        """A constant."""

    def found_class(self, node: ast.ClassDef, place: Place) -> None:
        """A class in which patches have lines; `place` is within it."""

    def run(self) -> list[tuple[Definition, ...]]:
        """All lines but those within functions of a file that the series added; of these the
        chains of definitions are returned, for `run_function`."""
        self._block(self.frames.module.node.body, ())
        return self._later

    def run_function(self, chain: tuple[Definition, ...], given: Given) -> None:
        """The lines of one function, its parameters being what they are given."""
        node = chain[-1]
        assert isinstance(node, FunctionNode)
        place = self.frames.place(chain, given)
        self._in_function(node, chain, place)

    def _mine(self, first: int, last: int | None) -> bool:
        return self.frames.lines.within(first, last or first)

    def _block(self, body: Iterable[ast.stmt], chain: tuple[Definition, ...]) -> None:
        place = self.frames.place(chain)
        for statement in body:
            self._statement(statement, chain, place)

    def _statement(self, node: ast.stmt, chain: tuple[Definition, ...], place: Place) -> None:
        decorated = getattr(node, "decorator_list", None)
        if not self._mine(decorated[0].lineno if decorated else node.lineno, node.end_lineno):
            return
        if isinstance(node, FunctionNode | ast.ClassDef):
            self._definition(node, chain, place)
            return
        soft = _guards(node)
        self.soft += soft
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self._statement(part, chain, place)
            elif isinstance(part, ast.excepthandler | ast.match_case):
                self.soft -= soft
                self._inner(part, chain, place)
                self.soft += soft
            else:
                self._expression(part, place)
        self.soft -= soft
        if isinstance(node, ast.Import | ast.ImportFrom) and (at := self.at(node)):
            self.found_import(node, at)

    def _inner(self, node: ast.AST, chain: tuple[Definition, ...], place: Place) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                self._statement(part, chain, place)
            else:
                self._expression(part, place)

    def _definition(self, node: Definition, chain: tuple[Definition, ...], place: Place) -> None:
        for part in node.decorator_list:
            self._expression(part, place)
        inner = (*chain, node)
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *(k.value for k in node.keywords)):
                self._expression(base, place)
            self.found_class(node, self.frames.place(inner))
            self._block(node.body, inner)
            return
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        annotations = [a.annotation for a in arguments(node.args)] + [node.returns]
        for part in (*defaults, *(() if self._lazy_annotations() else annotations)):
            if part is not None:
                self._expression(part, place)
        if self.frames.lines.whole and not any(isinstance(d, FunctionNode) for d in chain):
            self._later.append(inner)
        else:
            self._in_function(node, inner, self.frames.place(inner))

    def _in_function(self, node: FunctionNode, chain: tuple[Definition, ...], place: Place) -> None:
        for statement in node.body:
            self._statement(statement, chain, place)

    def _lazy_annotations(self) -> bool:
        return any(
            isinstance(n, ast.ImportFrom) and n.module == "__future__"
            for n in self.frames.module.node.body
        )

    def _expression(self, node: ast.AST, place: Place) -> None:
        if hidden := frozenset(_inner_names(node)):
            place = place.hiding(hidden)
        for item in ast.walk(node):
            at = self.at(item, end=isinstance(item, ast.Attribute))
            if isinstance(item, ast.Call):
                self.found_call(item, place)
            elif at is None:
                continue
            elif isinstance(item, ast.Attribute):
                self.found_attribute(item, place, at)
            elif isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load):
                self.found_name(item, place, at)
            elif isinstance(item, ast.Constant):
                self.found_text(item, at)

    def at(self, node: ast.AST, end: bool = False) -> Where | None:
        """Where in which patch a node stands, None if it is none of the series'."""
        line = getattr(node, "end_lineno" if end else "lineno", 0) or 0
        return self.frames.lines.mine.get(line)


def _inner_names(node: ast.AST) -> Iterator[str]:
    """The names that comprehensions and lambdas within an expression bind."""
    for item in ast.walk(node):
        if isinstance(item, ast.comprehension):
            yield from (n.id for n in ast.walk(item.target) if isinstance(n, ast.Name))
        elif isinstance(item, ast.Lambda):
            yield from (argument.arg for argument in arguments(item.args))


def _guards(node: ast.stmt) -> bool:
    """Whether what the statement holds may be missing: a try that catches ImportError, and
    what only type checkers see."""
    if isinstance(node, ast.Try):
        for handler in node.handlers:
            if handler.type is None:
                return True
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if {dotted(kind) for kind in kinds} & _SWALLOWS:
                return True
    return isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")
