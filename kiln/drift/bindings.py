"""The names that scopes of Python code bind, and where: syntax trees, taken as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = FunctionNode | ast.ClassDef | ast.Module | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
# Fields that hold statements, or what holds statements.
_BLOCKS = ("items", "body", "cases", "handlers", "orelse", "finalbody")
_KEPT = "_kiln_bindings"


@dataclass(frozen=True, eq=False)
class Binding:
    """What binds a name: the node, and what it is bound to where that is plain to see.

    typing: only under `if TYPE_CHECKING`, so not there when the program runs. original: of
    `from x import original as name`.
    """

    node: ast.AST
    kind: Literal["def", "class", "import", "from", "value", "parameter", "opaque"]
    value: ast.expr | None = None
    annotation: ast.expr | None = None
    typing: bool = False
    original: str = ""

    @property
    def line(self) -> int:
        """Where it stands."""
        node = self.node
        if isinstance(node, ast.withitem):
            node = node.optional_vars or node.context_expr
        return int(getattr(node, "lineno", 0))


Scope: TypeAlias = Mapping[str, tuple[Binding, ...]]


def dotted(node: ast.AST) -> str:
    """ "a.b.c" for names and attributes of names, "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def first_parameter(node: FunctionNode) -> str:
    """What a method calls its receiver; "" for a static method, and where there is none."""
    names = {dotted(d) for d in node.decorator_list}
    parameters = [*node.args.posonlyargs, *node.args.args]
    return parameters[0].arg if parameters and "staticmethod" not in names else ""


def blocks(node: ast.AST) -> list[ast.AST]:
    """The statements within a statement, and what holds such (handlers, cases, with items),
    in order."""
    found: list[ast.AST] = []
    for name in _BLOCKS:
        found += getattr(node, name, ())
    return found


def own_nodes(node: ScopeNode) -> Iterator[ast.AST]:
    """The statements of a scope, in order, without those inside of other functions and
    classes in it."""
    todo: list[ast.AST] = list(node.body) if isinstance(node.body, list) else []
    todo.reverse()
    while todo:
        item = todo.pop()
        yield item
        if not isinstance(item, DEFINITIONS):
            todo += reversed(blocks(item))


def bindings(node: ScopeNode) -> Scope:
    """The names that the statements of a scope bind; those of a function include its
    parameters. What binds names within an expression (comprehensions, lambda, :=) is left
    out. Kept with the node: the same scopes are asked for again and again."""
    known: Scope | None = vars(node).get(_KEPT)
    if known is None:
        known = vars(node)[_KEPT] = _bindings(node)
    return known


def _bindings(node: ScopeNode) -> Scope:
    found: dict[str, list[Binding]] = {}
    nodes = list(own_nodes(node))
    typing = _typing_only(nodes)
    if isinstance(node, (*FUNCTIONS, ast.Lambda)):
        for argument in arguments(node.args):
            annotation = argument.annotation
            bound = Binding(argument, "parameter", annotation=annotation)
            found.setdefault(argument.arg, []).append(bound)
    for item in nodes:
        for name, binding in binds(item, item in typing):
            found.setdefault(name, []).append(binding)
    return {name: tuple(bound) for name, bound in found.items()}


def arguments(args: ast.arguments) -> list[ast.arg]:
    """All of them, * and ** too."""
    extra = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def _typing_only(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    """The nodes under `if TYPE_CHECKING`."""
    found: set[ast.AST] = set()
    for item in nodes:
        if isinstance(item, ast.If) and dotted(item.test).endswith("TYPE_CHECKING"):
            for statement in item.body:
                found.update(ast.walk(statement))
    return found


def binds(item: ast.AST, typing: bool = False) -> Iterator[tuple[str, Binding]]:
    """The names that this very node binds, and how."""
    if isinstance(item, FUNCTIONS):
        yield item.name, Binding(item, "def", typing=typing)
    elif isinstance(item, ast.ClassDef):
        yield item.name, Binding(item, "class", typing=typing)
    elif isinstance(item, ast.Import):
        for alias in item.names:
            name = alias.asname or alias.name.partition(".")[0]
            yield name, Binding(alias, "import", typing=typing)
    elif isinstance(item, ast.ImportFrom):
        for alias in item.names:
            if alias.name != "*":
                bound = Binding(item, "from", typing=typing, original=alias.name)
                yield alias.asname or alias.name, bound
    elif isinstance(item, ast.Assign):
        for target in item.targets:
            yield from _targets(target, item, item.value, typing)
    elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
        yield item.target.id, Binding(item, "value", item.value, item.annotation, typing)
    elif isinstance(item, ast.For | ast.AsyncFor):
        yield from _targets(item.target, item, None, typing)
    elif isinstance(item, ast.withitem) and item.optional_vars is not None:
        yield from _targets(item.optional_vars, item, None, typing)
    elif isinstance(item, ast.ExceptHandler) and item.name:
        yield item.name, Binding(item, "opaque")
    elif isinstance(item, ast.match_case):
        for part in ast.walk(item.pattern):
            captured = getattr(part, "name", None) or getattr(part, "rest", None)
            if isinstance(captured, str):
                yield captured, Binding(item.pattern, "opaque")
    elif isinstance(item, ast.Global | ast.Nonlocal):
        for name in item.names:
            yield name, Binding(item, "opaque")


def _targets(
    target: ast.expr, node: ast.AST, value: ast.expr | None, typing: bool
) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield (
            target.id,
            Binding(node, "value" if value is not None else "opaque", value, typing=typing),
        )
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _targets(item, node, None, typing)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, node, None, typing)


def assigned(function: FunctionNode, receiver: str) -> Iterator[tuple[str, Binding]]:
    """What a method assigns to its receiver's attributes, in functions within it too."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _attributes(target, node, node.value, None, receiver)
        elif isinstance(node, ast.AnnAssign):
            yield from _attributes(node.target, node, node.value, node.annotation, receiver)
        elif isinstance(node, ast.For | ast.AsyncFor):
            yield from _attributes(node.target, node, None, None, receiver)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _attributes(node.optional_vars, node, None, None, receiver)
        todo += blocks(node)


def _attributes(
    target: ast.expr,
    node: ast.AST,
    value: ast.expr | None,
    annotation: ast.expr | None,
    receiver: str,
) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name) and target.value.id == receiver:
            plain = value is not None or annotation is not None
            yield target.attr, Binding(node, "value" if plain else "opaque", value, annotation)
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _attributes(item, node, None, None, receiver)
    elif isinstance(target, ast.Starred):
        yield from _attributes(target.value, node, None, None, receiver)
