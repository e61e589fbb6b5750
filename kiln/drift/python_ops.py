"""The operators that Python code registers with torch, and their schemas.

They are registered with `direct_register_custom_op` (or a partial of it), with torch's
`custom_op` and `triton_op`, and with `vllm.ir.register_op`; their schemas follow from the
annotations, by torch's rules, and are written here much as torch would.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator

from kiln.drift.bindings import FunctionNode, dotted
from kiln.drift.resolve import Resolver
from kiln.drift.section import Entry, Section, UnreadableError
from kiln.drift.signature import text
from kiln.drift.syntax import Function, Module
from kiln.drift.tree import Tree, parse
from kiln.drift.values import Frame, FunctionValue

_DIRECT, _IR = "direct_register_custom_op", "register_op"
_CUSTOM = ("custom_op", "triton_op")
_ARGUMENTS = ("op_name", "op_func", "mutates_args")
_HINTS = (_DIRECT.encode(), b"register_op", b"library.custom_op", b"@custom_op", b"triton_op")
_PLAIN = frozenset((*_ARGUMENTS, "fake_impl", "dispatch_key", "tags"))
_DEFAULT_LIBRARY, _IR_LIBRARY = "vllm", "vllm_ir"
_TYPES = {"torch.Tensor": "Tensor", "torch.dtype": "ScalarType", "dtype": "ScalarType",
          "torch.device": "Device", "device": "Device", "torch.SymInt": "int",
          "torch.types.Number": "Scalar", "Number": "Scalar"}  # fmt: skip
_LISTS = frozenset(("list", "List", "Sequence", "typing.List", "typing.Sequence",
                    "collections.abc.Sequence"))  # fmt: skip


def python_ops(resolver: Resolver) -> Section:
    """The operators that Python code defines, "library::name". Raises UnreadableError."""
    entries: dict[str, Entry] = {}
    unread: list[str] = []
    for path in resolver.tree.python:
        data = resolver.tree.text(path) or b""
        if not any(word in data for word in _HINTS):
            continue
        found = _quick(data, resolver.tree)
        if found is None:
            module = resolver.tree.at(path)
            if module is None or module.why:
                unread.append(module.why if module else path)
                continue
            reader = _Reader(resolver, module)
            found = list(reader.found())
            unread += [f"{path}:{line}" for line in reader.unread]
        entries.update((name, Entry(schema)) for name, schema in found)
    if not entries:
        raise UnreadableError("no operator is registered in any way that is known here")
    return Section(dict(sorted(entries.items())), tuple(unread))


# ---- the quick way: only the calls and the heads of their functions are parsed

_WORD = re.compile(rb"(?<!\w)(?:direct_register_custom_op|custom_op|triton_op|register_op)\b")
_PARTIAL = re.compile(rb"partial\(\s*direct_register_custom_op")
_DEFINED = re.compile(rb"^[ \t]*(?:async )?def (\w+)\(\s*((?:self|cls)\b)?", re.MULTILINE)
_FROM = re.compile(rb"^[ \t]*from (vllm[\w.]*) import (\([^)]{0,4000}\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(rb"\s*(?:from [\w.]+ import\b.*|import\b.*)?$")
_LONGEST = 1 << 16  # bytes of a call or of a function's head
_TOKEN = re.compile(
    rb'"""(?:[^\\]|\\.)*?"""'
    rb"|'''(?:[^\\]|\\.)*?'''"
    rb'|"(?:[^"\\\n]|\\.)*"'
    rb"|'(?:[^'\\\n]|\\.)*'"
    rb"|#[^\n]*|[()\[\]{}:]",
    re.DOTALL,
)


def _quick(data: bytes, tree: Tree) -> list[tuple[str, str]] | None:
    """The operators of a file that only has plain calls on plain functions; None for any
    other, which must be parsed as a whole."""
    if _PARTIAL.search(data):
        return None
    found: list[tuple[str, str]] = []
    heads: dict[bytes, list[int]] | None = None
    for match in _WORD.finditer(data):
        line = data.rfind(b"\n", 0, match.start()) + 1
        before, after = data[line : match.start()], data[match.end() : match.end() + 1]
        module = before.endswith(b".") and not before.endswith(b"library.")
        if b"#" in before or (module and match[0].decode() in _CUSTOM):
            continue
        if after != b"(" and _IMPORT.match(before):
            continue
        if after != b"(" or before.strip() or match[0] != _DIRECT.encode():
            return None
        heads = _heads(data) if heads is None else heads
        call = _parsed(b"f" + data[match.end() - 1 : _end(data, match.end() - 1, b"")])
        if not isinstance(call, ast.Expr) or not isinstance(call.value, ast.Call):
            return None
        given = _given(call.value)
        mutated = _texts(given.get("mutates_args"))
        match given.get("op_name"), given.get("op_func"):
            case ast.Constant(value=str(name)), ast.Name(id=function):
                starts = heads.get(function.encode(), [])
                head = _head(data, starts) if starts else _imported_head(tree, data, function)
                if head is None or mutated is None or not given.keys() <= _PLAIN:
                    return None
                found.append((f"{_DEFAULT_LIBRARY}::{name}", _schema(head, mutated)))
            case _:
                return None
    return found


def _heads(data: bytes) -> dict[bytes, list[int]]:
    """Where functions of each name begin, without methods."""
    found: dict[bytes, list[int]] = {}
    for match in _DEFINED.finditer(data):
        if not match[2]:
            found.setdefault(match[1], []).append(match.start())
    return found


def _imported_head(tree: Tree, data: bytes, name: str) -> FunctionNode | None:
    """The head of a function that a file imports by its own name from one place in vLLM."""
    word = re.compile(rb"\b%s\b(?!\s+as\b)" % name.encode())
    homes = [m[1].decode() for m in _FROM.finditer(data) if word.search(m[2])]
    path = tree.path(homes[0]) if len(homes) == 1 else None
    home = tree.text(path) if path else None
    return _head(home, _heads(home).get(name.encode(), [])) if home else None


def _head(data: bytes, starts: list[int]) -> FunctionNode | None:
    """The one function that starts there, without its body; None if there is not just one."""
    if len(starts) != 1:
        return None
    node = _parsed(data[starts[0] : _end(data, starts[0], b":")].lstrip() + b" ...")
    return node if isinstance(node, FunctionNode) else None


def _end(data: bytes, start: int, last: bytes) -> int:
    """Where the brackets that open at or after `start` are closed, and `last` has come."""
    depth = 0
    for match in _TOKEN.finditer(data, start, start + _LONGEST):
        token = match[0]
        depth += (token in b"([{") - (token in b")]}")
        if depth == 0 and (token == last or (not last and token in b")]}")):
            return match.end()
    return min(len(data), start + _LONGEST)


def _parsed(data: bytes) -> ast.stmt | None:
    tree, _ = parse(data, "")
    return tree.body[0] if len(tree.body) == 1 else None


def _given(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of `direct_register_custom_op` by name; "" for a ** argument."""
    given: dict[str, ast.expr] = dict(zip(_ARGUMENTS, call.args, strict=False))
    return given | {k.arg or "": k.value for k in call.keywords}


class _Reader:
    """The registrations of one module."""

    def __init__(self, resolver: Resolver, module: Module) -> None:
        self._resolver, self._module = resolver, module
        self._partials = dict(self._aliases())
        self._frames: dict[FunctionNode | None, Frame] = {None: Frame(module)}
        self.unread: list[int] = []

    def found(self) -> Iterator[tuple[str, str]]:
        """Names and schemas. Fills `unread`."""
        todo: list[tuple[ast.AST, FunctionNode | None]] = [(self._module.node, None)]
        lines = self._lines()
        while todo:
            node, inside = todo.pop()
            if isinstance(node, ast.stmt):
                decorated = getattr(node, "decorator_list", None)
                first = decorated[0].lineno if decorated else node.lineno
                at = bisect.bisect_left(lines, first)
                if at == len(lines) or lines[at] > (node.end_lineno or 0):
                    continue
            if isinstance(node, FunctionNode):
                yield from self._decorated(node)
                inside = node
            if isinstance(node, ast.Call):
                library = self._direct(node)
                if library is not None and not (inside and inside.name == _DIRECT):
                    yield from self._registered(node, library, inside)
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]

    def _lines(self) -> list[int]:
        """The lines that have one of the words; the rest need not be gone through."""
        words = [_DIRECT, *_CUSTOM, _IR, *self._partials]
        pattern = re.compile("|".join(map(re.escape, words)).encode())
        return [n for n, line in enumerate(self._module.lines, 1) if pattern.search(line)]

    def _aliases(self) -> Iterator[tuple[str, ast.Call]]:
        for name, bound in self._module.scope.items():
            value = bound[0].value
            if not isinstance(value, ast.Call) or not dotted(value.func).endswith("partial"):
                continue
            if value.args and dotted(value.args[0]).endswith(_DIRECT):
                yield name, value

    def _direct(self, call: ast.Call) -> ast.expr | str | None:
        """The library of a registering call, None for any other call."""
        name = dotted(call.func)
        partial = self._partials.get(name)
        if partial is None and name.rpartition(".")[2] != _DIRECT:
            return None
        for given in (call, partial):
            for keyword in given.keywords if given else ():
                if keyword.arg == "target_lib":
                    return keyword.value
        return _DEFAULT_LIBRARY

    def _registered(
        self, call: ast.Call, library: ast.expr | str, inside: FunctionNode | None
    ) -> Iterator[tuple[str, str]]:
        given = _given(call)
        space = library if isinstance(library, str) else self._library(library)
        mutated = _texts(given.get("mutates_args"))
        match given.get("op_name"), given.get("op_func"):
            case ast.Constant(value=str(name)), ast.expr() as function if space is not None:
                node = self._function(function, inside)
                known = node is not None and mutated is not None
                if not known:
                    self.unread.append(call.lineno)
                yield f"{space}::{name}", _schema(node, mutated or ()) if node and known else ""
            case _:
                self.unread.append(call.lineno)

    def _library(self, node: ast.expr) -> str | None:
        """The namespace of `Library("x", ...)` behind a name."""
        origin = self._resolver.origin(self._module.name, dotted(node))
        value = origin[1].value if origin else None
        if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Constant):
            return str(value.args[0].value)
        return None

    def _function(self, node: ast.expr, inside: FunctionNode | None) -> FunctionNode | None:
        frame = self._frames.get(inside)
        if frame is None:
            assert inside is not None
            function = Function(self._module, inside, None, inside.name)
            frame = self._frames[inside] = self._resolver.frame_of(function)
        found = self._resolver.infer(node, frame)
        return found.function.node if isinstance(found, FunctionValue) else None

    def _decorated(self, node: FunctionNode) -> Iterator[tuple[str, str]]:
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = dotted(call.func if call else decorator).rpartition(".")[2]
            keywords = {k.arg: k.value for k in call.keywords} if call else {}
            if name in _CUSTOM and call is not None:
                mutated = _texts(keywords.get("mutates_args"))
                match call.args[:1]:
                    case [ast.Constant(value=str(own))] if "::" in own and mutated is not None:
                        yield own, _schema(node, mutated)
                    case _:
                        self.unread.append(decorator.lineno)
            elif name == _IR:
                match keywords.get("name", ast.Constant(node.name)):
                    case ast.Constant(value=str(own)):
                        yield f"{_IR_LIBRARY}::{own}", _schema(node, ())
                    case _:
                        self.unread.append(decorator.lineno)


def _texts(node: ast.expr | None) -> tuple[str, ...] | None:
    """A list of texts written out, () for none at all."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return ()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
        return tuple(str(i) for i in items) if all(isinstance(i, str) for i in items) else None
    return None


def _schema(node: FunctionNode, mutated: tuple[str, ...]) -> str:
    """As torch writes it: "(Tensor x, Tensor! out, int n=1) -> Tensor"."""
    args = node.args
    shown: list[str] = []
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    rows = [*zip(plain, [*defaults, *args.defaults], strict=True)]
    if args.kwonlyargs:
        rows += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    for number, (argument, default) in enumerate(rows):
        if number == len(plain):
            shown.append("*")
        kind = _type(argument.annotation)
        if argument.arg in mutated or "unknown" in mutated:
            kind = kind.replace("Tensor", "Tensor!", 1)
        value = "" if default is None else f"={text(default)}"
        shown.append(f"{kind} {argument.arg}{value}")
    returned = "()" if node.returns is None else _type(node.returns)
    return f"({', '.join(shown)}) -> {'()' if returned == 'None' else returned}"


def _type(node: ast.expr | None) -> str:
    """An annotation as torch's schema language has it; what torch would refuse stays."""
    if node is None:
        return "Tensor"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _type(ast.parse(node.value, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return node.value
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [_type(node.left), _type(node.right)]
        if "None" in sides and len(sides) == 2:
            return next((s for s in sides if s != "None"), "None") + "?"
        return " | ".join(sides)
    if isinstance(node, ast.Subscript):
        head = dotted(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        inner = [_type(part) for part in parts]
        if head.endswith("Optional"):
            return inner[0] + "?"
        if head.endswith("Union"):
            return " | ".join(i for i in inner if i != "None") + ("?" if "None" in inner else "")
        if head in _LISTS:
            return inner[0] + "[]"
        if head.lower().endswith("tuple"):
            if isinstance(parts[-1], ast.Constant) and parts[-1].value is ...:
                return inner[0] + "[]"
            return f"({', '.join(inner)})"
        return text(node)
    name = dotted(node)
    return _TYPES.get(name, name or text(node))
