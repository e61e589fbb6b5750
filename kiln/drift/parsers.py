"""The class behind each name of a tool parser or reasoning parser.

vLLM registers them in several ways, and has used all of these: a table that a loop hands
to `register_lazy_module`, that call by itself, and `register_module` as a decorator or
call. All calls of these methods on the manager are looked for in the whole source; each
is worked out from constants, or else named as unread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kiln.drift.bindings import FunctionNode, dotted, own_nodes
from kiln.drift.resolve import Resolver
from kiln.drift.section import Entry, Section, UnreadableError
from kiln.drift.syntax import Class, Function, Module
from kiln.drift.values import ClassValue, Frame

_COMPOSER = "vllm/parser/parser_manager.py"
_MOST = 10_000  # rounds of loops in one file; what makes more is not followed


@dataclass(frozen=True)
class Registry:
    """manager: its class. home: where it is known to be, for messages."""

    manager: str
    home: str


TOOLS = Registry("ToolParserManager", "vllm/tool_parsers/")
REASONING = Registry("ReasoningParserManager", "vllm/reasoning/")


def read_parsers(resolver: Resolver, registry: Registry) -> Section:
    """The names of one registry. Raises UnreadableError."""
    word = registry.manager.encode()
    pattern = rb"\b" + word + rb"\s*\.\s*(register_module|register_lazy_module|lazy_parsers)\b"
    paths = dict.fromkeys(path for path, _ in resolver.tree.grep(pattern, word))
    found: dict[str, tuple[str, str]] = {}
    unread: list[str] = []
    for path in paths:
        module = resolver.tree.at(path)
        if module is None or module.why:
            unread.append(module.why if module else path)
            continue
        reader = _Reader(module, registry.manager)
        found.update(reader.registrations())
        unread += [f"{path}:{line}" for line in reader.unread]
    if not found:
        why = f"no registration with {registry.manager} can be read (it was in {registry.home})"
        raise UnreadableError(f"{why}: {', '.join(unread)}" if unread else why)
    special = _special(resolver)
    entries: dict[str, Entry] = {}
    for name, (module_name, cls) in sorted(found.items()):
        shown, targets = f"{module_name}.{cls}", [(module_name, cls)]
        if not _there(resolver, module_name, cls):
            shown += " (which is not there)"
        if name in special:
            whole = special[name]
            shown += f", within {whole}"
            targets.append((whole.module.name, whole.qualname))
        entries[name] = Entry(shown, targets=tuple(targets))
    return Section(entries, tuple(unread))


def _special(resolver: Resolver) -> dict[str, Class]:
    """The parsers' names for which vLLM's ParserManager does not only put the two parsers
    together: name -> the class that it makes the whole parser of."""
    module = resolver.tree.at(_COMPOSER)
    found: dict[str, Class] = {}
    for cls in module.classes.values() if module else ():
        for node in cls.node.body:
            if not isinstance(node, FunctionNode):
                continue
            frame = resolver.frame_of(Function(cls.module, node, cls, node.name))
            for item in own_nodes(node):
                if isinstance(item, ast.If) and (whole := _made(resolver, item, frame)):
                    for constant in ast.walk(item.test):
                        found |= dict.fromkeys(_named(constant, cls.module), whole)
    return found


def _made(resolver: Resolver, node: ast.If, frame: Frame) -> Class | None:
    """The class of vllm.parser that a branch makes a parser of or returns."""
    for statement in node.body:
        made = statement.bases[:1] if isinstance(statement, ast.ClassDef) else []
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name):
            made = [statement.value]
        for name in made:
            value = resolver.infer(name, frame)
            if isinstance(value, ClassValue) and value.cls.module.name.startswith("vllm.parser."):
                return value.cls
    return None


def _named(node: ast.AST, module: Module) -> list[str]:
    """A text, or that of a constant of the module."""
    if isinstance(node, ast.Name) and len(bound := module.scope.get(node.id, ())) == 1:
        node = bound[0].value or node
    plain = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return [str(node.value)] if plain and isinstance(node, ast.Constant) else []


def _there(resolver: Resolver, module: str, name: str) -> bool:
    """Whether a class can be in a module. Its name in the file will do: most files are not
    parsed for this."""
    path = resolver.tree.path(module)
    return path is not None and name.encode() in (resolver.tree.text(path) or b"")


class _Reader:
    """The registrations of one module."""

    def __init__(self, module: Module, manager: str) -> None:
        self._module, self._manager, self._rounds = module, manager, 0
        self.unread: list[int] = []

    def registrations(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Each name with its module and class. Fills `unread`."""
        yield from self._block(self._module.node.body, {})

    def _block(
        self, body: list[ast.stmt], known: dict[str, object]
    ) -> Iterator[tuple[str, tuple[str, str]]]:
        for statement in body:
            if isinstance(statement, ast.ClassDef) and statement.name == self._manager:
                continue
            if isinstance(statement, ast.ClassDef):
                yield from self._decorated(statement, known)
            if isinstance(statement, ast.For) and self._concerned(statement):
                yield from self._loop(statement, known)
                continue
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name):
                    known = {**known, target.id: self._constant(statement.value, known)}
                elif isinstance(target, ast.Subscript) and self._is_table(target.value):
                    yield from self._stored(target, statement, known)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                yield from self._call(statement.value, known)
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(statement, name, None)
                if isinstance(inner, list):
                    yield from self._block(inner, known)
            for handler in getattr(statement, "handlers", []):
                yield from self._block(handler.body, known)

    def _concerned(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id == self._manager for n in ast.walk(node))

    def _is_table(self, node: ast.expr) -> bool:
        return dotted(node) in (f"{self._manager}.lazy_parsers", f"{self._manager}.tool_parsers",
                                f"{self._manager}.reasoning_parsers")  # fmt: skip

    def _stored(
        self, target: ast.Subscript, statement: ast.Assign, known: dict[str, object]
    ) -> Iterator[tuple[str, tuple[str, str]]]:
        """`Manager.lazy_parsers[name] = (module, class)`."""
        name, value = self._constant(target.slice, known), self._constant(statement.value, known)
        match name, value:
            case str(), (str(module), str(cls)):
                yield name, (module, cls)
            case _:
                self.unread.append(statement.lineno)

    def _loop(
        self, statement: ast.For, known: dict[str, object]
    ) -> Iterator[tuple[str, tuple[str, str]]]:
        items = self._constant(statement.iter, known)
        self._rounds += len(items) if isinstance(items, tuple) else 0
        if not isinstance(items, tuple) or self._rounds > _MOST:
            self.unread.append(statement.lineno)
            return
        for item in items:
            inner = dict(known)
            if not _unpack(statement.target, item, inner):
                self.unread.append(statement.lineno)
                return
            yield from self._block(statement.body, inner)

    def _call(
        self, call: ast.Call, known: dict[str, object]
    ) -> Iterator[tuple[str, tuple[str, str]]]:
        name = dotted(call.func)
        if name == f"{self._manager}.register_lazy_module":
            names = ("name", "module_path", "class_name")
            given: dict[str, ast.expr] = dict(zip(names, call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            values = [self._constant(given[n], known) if n in given else None for n in names]
            match values:
                case [str(parser), str(module), str(cls)]:
                    yield parser, (module, cls)
                case _:
                    self.unread.append(call.lineno)
        elif name == f"{self._manager}.register_module":
            keywords = {k.arg: k.value for k in call.keywords}
            cls_node = keywords.get("module")
            parsers = self._names(call, known)
            if cls_node is None or parsers is None or not dotted(cls_node):
                self.unread.append(call.lineno)
                return
            cls_name = dotted(cls_node)
            for parser in parsers or [cls_name]:
                yield parser, (self._module.name, cls_name)

    def _names(self, call: ast.Call, known: dict[str, object]) -> list[str] | None:
        """The names that `register_module` is given; [] for none, None if unreadable."""
        node = next((k.value for k in call.keywords if k.arg == "name"), None)
        if node is None and call.args:
            node = call.args[0]
        if node is None:
            return []
        value = self._constant(node, known)
        values = value if isinstance(value, tuple) else (value,)
        if value is None and isinstance(node, ast.Constant):
            return []
        return (
            [v for v in values if isinstance(v, str)]
            if all(isinstance(v, str) for v in values)
            else None
        )

    def _decorated(
        self, node: ast.ClassDef, known: dict[str, object]
    ) -> Iterator[tuple[str, tuple[str, str]]]:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and dotted(decorator.func) == (
                f"{self._manager}.register_module"
            ):
                names = self._names(decorator, known)
                if names is None:
                    self.unread.append(decorator.lineno)
                    continue
                for name in names or [node.name]:
                    yield name, (self._module.name, node.name)

    def _constant(self, node: ast.expr, known: dict[str, object]) -> object:
        """A text, or a tuple of what is in a list or dict's items; None if not plain."""
        match node:
            case ast.Constant(value=str()):
                return node.value
            case ast.Name():
                if node.id in known:
                    return known[node.id]
                bound = self._module.scope.get(node.id, ())
                if len(bound) == 1 and bound[0].value is not None:
                    return self._constant(bound[0].value, {})
            case ast.Tuple() | ast.List():
                return tuple(self._constant(item, known) for item in node.elts)
            case ast.Dict() if None not in node.keys:
                keys = [self._constant(key, known) for key in node.keys if key is not None]
                values = [self._constant(value, known) for value in node.values]
                return tuple(zip(keys, values, strict=True))
            case ast.Call(func=ast.Attribute(attr="items", value=table), args=[]):
                return self._constant(table, known)
            case ast.JoinedStr():
                parts = [
                    self._constant(p.value if isinstance(p, ast.FormattedValue) else p, known)
                    for p in node.values
                ]
                if all(isinstance(part, str) for part in parts):
                    return "".join(str(part) for part in parts)
            case ast.BinOp(op=ast.Add()):
                left, right = (self._constant(p, known) for p in (node.left, node.right))
                if isinstance(left, str) and isinstance(right, str):
                    return left + right
        return None


def _unpack(target: ast.expr, value: object, into: dict[str, object]) -> bool:
    if isinstance(target, ast.Name):
        into[target.id] = value
        return True
    if isinstance(target, ast.Tuple) and isinstance(value, tuple):
        pairs = list(zip(target.elts, value, strict=False))
        return len(value) == len(target.elts) and all(_unpack(t, v, into) for t, v in pairs)
    return False
