"""Where the lines of a patch stand, in the old source and in the new one.

A line that a patch adds to a function sees the function's names and the module's, and
those that the series itself adds. The same line, taken to the new source, sees those of
the function of the same name there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kiln.drift.bindings import Binding, FunctionNode, Scope, ScopeNode, bindings, dotted
from kiln.drift.lines import Lines
from kiln.drift.resolve import Resolver
from kiln.drift.syntax import Class, Module
from kiln.drift.values import Frame, Layer, Value

Definition = FunctionNode | ast.ClassDef
_TESTS = ("isinstance", "issubclass", "type", "is_list_of", "callable")
_KEPT = "_kiln_tested"


@dataclass(frozen=True)
class Side:
    """One source, with the files that the series adds. module: the one of the lines in
    question, None where the source has no such file."""

    resolver: Resolver
    module: Module | None


@dataclass(frozen=True, eq=False)
class Place:
    """Where an expression stands. chain: the definitions around it in the patched file,
    from the outermost. old, new: its frames; new is None where the new source has no such
    file, or it cannot be parsed. missing: the new source has not all of the functions
    around."""

    chain: tuple[Definition, ...]
    old: Frame
    new: Frame | None
    missing: bool

    def hiding(self, names: frozenset[str]) -> Place:
        """The place within an expression that binds names of its own."""
        old = replace(self.old, hidden=self.old.hidden | names)
        new = self.new and replace(self.new, hidden=self.new.hidden | names)
        return Place(self.chain, old, new, self.missing)

    def narrows(self, value: ast.expr) -> bool:
        """Whether a test around may say more of what an expression is than its type."""
        return bool(name := dotted(value)) and self._tests(name)

    def minds(self, value: ast.expr, name: str) -> bool:
        """Whether the lines ask somewhere around if an expression has an attribute."""
        return self._tests(f"{dotted(value)}.{name}?")

    def _tests(self, text: str) -> bool:
        functions = [node for node in self.chain if isinstance(node, FunctionNode)]
        return any(text in _tested(node) for node in functions)

    @property
    def qualname(self) -> str:
        """ "Class.method", "" for the module itself."""
        return ".".join(node.name for node in self.chain)


@dataclass
class Frames:
    """The places of one file. module: as patched. sides: old and new."""

    module: Module
    lines: Lines
    old: Side
    new: Side
    _own: dict[ScopeNode, Scope] = field(default_factory=dict)
    _places: dict[tuple[Definition, ...], Place] = field(default_factory=dict)

    def place(
        self,
        chain: tuple[Definition, ...],
        given: Mapping[str, tuple[Value | None, Value | None]] | None = None,
    ) -> Place:
        """The place inside of some definitions. given: what is known of the innermost
        function's parameters, in the old source and the new."""
        if not given and chain in self._places:
            return self._places[chain]
        sides = [
            self._frame(side, chain, given or {}, n) for n, side in enumerate((self.old, self.new))
        ]
        (old, _), (new, missing) = sides
        place = Place(chain, old or Frame(self.module), new, missing)
        if not given:
            self._places[chain] = place
        return place

    def is_own(self, node: ast.AST) -> bool:
        """Whether the series put the definition there."""
        return getattr(node, "lineno", 0) in self.lines.mine

    def _frame(
        self,
        side: Side,
        chain: Sequence[Definition],
        given: Mapping[str, tuple[Value | None, Value | None]],
        number: int,
    ) -> tuple[Frame | None, bool]:
        if side.module is None or side.module.why:
            return None, True
        layers: list[Layer] = []
        scope: ScopeNode | None = side.module.node
        owner: Class | None = None
        missing, own, names = False, self.lines.whole, list[str]()
        for node in chain:
            names.append(node.name)
            own = own or self.is_own(node)
            there = node if own else self._counterpart(node, scope, self._scope_above(chain, node))
            missing = missing or there is None
            if isinstance(node, ast.ClassDef):
                owner = None
                if isinstance(there, ast.ClassDef):
                    owner = side.resolver.class_of(side.module, there, ".".join(names))
                if node is chain[-1]:
                    layers.append(Layer(there, owner, {} if own else self.own(node), {}))
            else:
                values = {
                    name: value
                    for name, pair in (given if node is chain[-1] else {}).items()
                    if (value := pair[number]) is not None
                }
                layers.append(Layer(there, owner, {} if own else self.own(node), values))
                owner = None
            scope = there
        layers.reverse()
        extra = {} if self.lines.whole else self.own(self.module.node)
        return Frame(side.module, tuple(layers), extra), missing

    def _scope_above(self, chain: Sequence[Definition], node: Definition) -> ScopeNode:
        index = list(chain).index(node)
        return chain[index - 1] if index else self.module.node

    def _counterpart(
        self, node: Definition, scope: ScopeNode | None, above: ScopeNode
    ) -> Definition | None:
        """The definition of the same name in a scope of a source; of several the one with
        the same number among as many."""
        if scope is None:
            return None
        kind = ast.ClassDef if isinstance(node, ast.ClassDef) else FunctionNode
        there = _defined(bindings(scope).get(node.name, ()), kind)
        here = [d for d in _defined(bindings(above).get(node.name, ()), kind) if not self.is_own(d)]
        if len(there) == 1:
            return there[0]
        if len(there) == len(here) and node in here:
            return there[here.index(node)]
        return None

    def own(self, scope: ScopeNode) -> Scope:
        """The names that lines of the series bind in a scope of the patched file."""
        if scope not in self._own:
            found: dict[str, tuple[Binding, ...]] = {}
            for name, bound in bindings(scope).items():
                mine = tuple(b for b in bound if b.line in self.lines.mine)
                if mine:
                    found[name] = mine
            self._own[scope] = found
        return self._own[scope]


def _tested(node: ast.AST) -> frozenset[str]:
    """What `isinstance` and its like are asked about within a function: "a.b"; and what
    `hasattr` is: "a.b.name?"."""
    known: frozenset[str] | None = vars(node).get(_KEPT)
    if known is None:
        found: set[str] = set()
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            asked = dotted(call.args[0])
            if dotted(call.func) in _TESTS:
                found.add(asked)
            elif dotted(call.func) == "hasattr" and isinstance(call.args[-1], ast.Constant):
                found.add(f"{asked}.{call.args[-1].value!s}?")
        known = vars(node)[_KEPT] = frozenset(found)
    return known


def _defined(bound: Sequence[Binding], kind: object) -> list[Definition]:
    wanted = ast.ClassDef if kind is ast.ClassDef else FunctionNode
    return [b.node for b in bound if isinstance(b.node, wanted)]
