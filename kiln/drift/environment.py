"""The environment variables that vLLM knows, with their defaults (vllm/envs.py)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from kiln.drift.bindings import dotted
from kiln.drift.section import Entry, Section, UnreadableError
from kiln.drift.signature import text
from kiln.drift.tree import Tree

PATH = "vllm/envs.py"
WORKED_OUT = "(worked out)"
_TABLE = "environment_variables"
_READERS = ("os.getenv", "os.environ.get", "getenv", "environ.get")
_METHODS = ("lower", "upper", "strip")
_FUNCTIONS: Mapping[str, Callable[[object], object]] = {
    "bool": bool,
    "int": lambda value: int(value) if isinstance(value, str | int | float) else _refuse(),
    "float": lambda value: float(value) if isinstance(value, str | int | float) else _refuse(),
    "str": str,
    "maybe_convert_int": lambda value: None if value is None else int(str(value)),
    "maybe_convert_bool": lambda value: None if value is None else bool(int(str(value))),
}


class _UnknownError(Exception):
    """The value of an expression cannot be told from its text."""


def _refuse() -> object:
    raise _UnknownError


def read_environment(tree: Tree) -> Section:
    """Every variable of the table: the value that holds where it is unset, and how its
    text is read otherwise. Raises UnreadableError."""
    module = tree.at(PATH)
    if module is None or module.why:
        raise UnreadableError(module.why if module else f"there is no {PATH}")
    tables = [b.value for b in module.scope.get(_TABLE, ()) if isinstance(b.value, ast.Dict)]
    if len(tables) != 1:
        raise UnreadableError(f"{PATH} has no dictionary {_TABLE} written out in it")
    entries: dict[str, Entry] = {}
    unread: list[str] = []
    for key, value in zip(tables[0].keys, tables[0].values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            entries[key.value] = _entry(key.value, value)
        else:
            unread.append(f"{PATH}:{value.lineno}")
    if not entries:
        raise UnreadableError(f"{PATH}: {_TABLE} is empty")
    return Section(entries, tuple(unread))


def _entry(name: str, value: ast.expr) -> Entry:
    wrapped = value
    if isinstance(value, ast.Call):  # deprecated_env(name, since, instead, lambda: ...)
        wrapped = next((a for a in value.args if isinstance(a, ast.Lambda)), value)
    body = wrapped.body if isinstance(wrapped, ast.Lambda) else wrapped
    try:
        return Entry(repr(_unset(body)), _without_default(name, body))
    except (_UnknownError, ValueError, TypeError, RecursionError):
        pass
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and (default := _default(node, name)) is not None:
            return Entry(text(default), _without_default(name, body), exact=False)
    return Entry(WORKED_OUT, text(body), exact=False)


def _default(node: ast.Call, name: str = "") -> ast.expr | None:
    """What a call that reads the variable ("" = any) falls back to; None for any other
    call. vLLM's own helpers ("env_with_choices(name, default, ...)") are such calls too."""
    called = dotted(node.func)
    if called not in _READERS and not called.startswith(("env_", "get_env")):
        return None
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.Constant) or (name and first.value != name):
        return None
    keyword = next((k.value for k in node.keywords if k.arg == "default"), None)
    return keyword or (node.args[1] if len(node.args) > 1 else ast.Constant(None))


def _without_default(name: str, body: ast.expr) -> str:
    """The expression's text with its default left out; the tree stays as it is."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and _default(node, name) is not None:
            args, keywords = node.args, node.keywords
            node.args = [args[0], *args[2:]]
            node.keywords = [k for k in keywords if k.arg != "default"]
            try:
                return text(body)
            finally:
                node.args, node.keywords = args, keywords
    return text(body)


def _unset(node: ast.expr) -> object:
    """What an expression comes to where no variable is set: the few forms that vllm/envs.py
    is made of, worked out here, never run. Raises _UnknownError for any other form."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Tuple() | ast.Set():
            return tuple(_unset(item) for item in node.elts)
        case ast.List():
            return [_unset(item) for item in node.elts]
        case ast.UnaryOp(op=ast.Not()):
            return not _unset(node.operand)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.BoolOp():
            value: object = None
            for item in node.values:
                value = _unset(item)
                if bool(value) is isinstance(node.op, ast.Or):
                    break
            return value
        case ast.IfExp():
            return _unset(node.body if _unset(node.test) else node.orelse)
        case ast.Compare(ops=[operator], comparators=[right]):
            return _compared(node.left, operator, right)
        case ast.Call():
            return _called(node)
    raise _UnknownError


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    if dotted(right) in ("os.environ", "environ") and isinstance(left, ast.Constant):
        if isinstance(operator, ast.In | ast.NotIn):
            return isinstance(operator, ast.NotIn)
        raise _UnknownError
    a, b = _unset(left), _unset(right)
    match operator:
        case ast.Eq() | ast.Is():
            return a == b
        case ast.NotEq() | ast.IsNot():
            return a != b
        case ast.In() | ast.NotIn() if isinstance(b, tuple | list):
            return (a in b) is isinstance(operator, ast.In)
    raise _UnknownError


def _called(node: ast.Call) -> object:
    if (default := _default(node)) is not None:
        return _unset(default)
    name = dotted(node.func)
    if name in _FUNCTIONS and len(node.args) == 1 and not node.keywords:
        return _FUNCTIONS[name](_unset(node.args[0]))
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and not node.args:
        value = _unset(node.func.value)
        if isinstance(value, str):
            return str(getattr(value, node.func.attr)())
    raise _UnknownError
