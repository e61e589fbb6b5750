"""Which class a model runner builds for each speculative method.

Both runners choose in a chain of conditions on the speculative config. The chain is
followed once for each method that the config knows; a condition that the method does not
decide (one on the draft model, say) stays beside the class that it leads to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kiln.drift.bindings import FunctionNode, dotted
from kiln.drift.resolve import Resolver
from kiln.drift.section import Entry, Section, UnreadableError
from kiln.drift.signature import text
from kiln.drift.syntax import Function, Module, imported
from kiln.drift.tree import module_name, parse
from kiln.drift.values import ClassValue, FunctionValue

_CONFIG, _CONFIG_CLASS, _METHODS = (
    "vllm.config.speculative",
    "SpeculativeConfig",
    "SpeculativeMethod",
)
_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_DEPTH = 20


def read_v1(resolver: Resolver) -> Section:
    """What the V1 runner puts into `self.drafter`. Raises UnreadableError."""
    word = b"self.drafter = "
    paths = dict.fromkeys(
        path for path, _ in resolver.tree.grep(rb"^ *self\.drafter = \w+\(", word)
    )
    if len(paths) != 1:
        seen = ", ".join(paths) or "no file"
        raise UnreadableError(f"{seen} builds self.drafter (it was {_RUNNER})")
    module = _module(resolver, next(iter(paths)))
    for cls in module.classes.values():
        for node in cls.node.body:
            if isinstance(node, FunctionNode) and any(_assigns(n) for n in ast.walk(node)):
                function = Function(module, node, cls, f"{cls.qualname}.{node.name}")
                chain = _Chain(resolver, function)
                return chain.section(chain.innermost(node.body))
    raise UnreadableError(f"{module.path}: no method assigns self.drafter")


def read_v2(resolver: Resolver) -> Section | None:
    """What the V2 runner's `init_speculator` returns; None for a source without that
    runner. Raises UnreadableError."""
    word = b"def init_speculator"
    paths = list(dict.fromkeys(p for p, _ in resolver.tree.grep(rb"^def init_speculator\b", word)))
    if not paths and "vllm/v1/worker/gpu/model_runner.py" not in resolver.tree.names:
        return None
    if len(paths) != 1:
        seen = ", ".join(paths) or "no file"
        raise UnreadableError(
            f"init_speculator is in {seen} (it was in v1/worker/gpu/spec_decode/)"
        )
    module = _module(resolver, paths[0])
    node = next((n for n in module.node.body if getattr(n, "name", "") == "init_speculator"), None)
    if not isinstance(node, FunctionNode):
        raise UnreadableError(f"{paths[0]}: init_speculator is not a plain function")
    function = Function(module, node, None, node.name)
    return _Chain(resolver, function).section(node.body)


def _until(resolver: Resolver, path: str, at: int) -> Module:
    """A module, up to the end of the method around a byte: the rest of this one, which is
    vLLM's longest by far, need not be parsed."""
    data = resolver.tree.text(path) or b""
    end = data.find(b"\n    def ", at)
    node, why = parse(data[:end] if end >= 0 else data, path)
    return _module(resolver, path) if why else Module(module_name(path), path, node, data)


def _module(resolver: Resolver, path: str) -> Module:
    module = resolver.tree.at(path)
    if module is None or module.why:
        raise UnreadableError(module.why if module else path)
    return module


def _assigns(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and [dotted(target) for target in node.targets] == ["self.drafter"]
        and isinstance(node.value, ast.Call)
    )


@dataclass(frozen=True)
class _Outcome:
    """conditions: those that the method leaves open. value: what is built, None: an error."""

    conditions: tuple[str, ...]
    value: ast.expr | None


class _Chain:
    """One function that chooses."""

    def __init__(self, resolver: Resolver, function: Function) -> None:
        self._resolver, self._function = resolver, function
        self._frame = resolver.frame_of(function)
        self._answers: dict[tuple[str, str], bool | None] = {}
        module = resolver.tree.module(_CONFIG)
        if module is None or module.why:
            raise UnreadableError(module.why if module else f"there is no {_CONFIG}")
        self._config_module = module
        config = next((c for c in module.classes.values() if c.qualname == _CONFIG_CLASS), None)
        if config is None:
            raise UnreadableError(f"{module.path} has no class {_CONFIG_CLASS}")
        self._config = config

    def innermost(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The innermost block that has all assignments to self.drafter and all conditions
        that the method decides."""
        holding = [s for s in body if any(_assigns(n) for n in ast.walk(s))]
        match holding:
            case [ast.With() as only]:
                return self.innermost(only.body)
            case [ast.If(orelse=[]) as only]:
                methods = self._methods()
                if all(self._truth(only.test, method, 0) is None for method in methods):
                    return self.innermost(only.body)
        return body

    def section(self, body: list[ast.stmt]) -> Section:
        """Every method for which something is built."""
        entries: dict[str, Entry] = {}
        for method in sorted(self._methods()):
            outcomes, _ = self._follow(body, method, ())
            built = [outcome for outcome in outcomes if outcome.value is not None]
            if built:
                entries[method] = self._entry(built)
        if not entries:
            where = f"{self._function.module.path}:{self._function.node.lineno}"
            raise UnreadableError(f"{where}: it builds nothing for any method")
        return Section(entries)

    def _entry(self, outcomes: Sequence[_Outcome]) -> Entry:
        shown: list[str] = []
        classes: list[tuple[str, str]] = []
        for outcome in outcomes:
            assert outcome.value is not None
            name, target = self._built(outcome.value)
            if target is not None:
                classes.append(target)
            condition = " and ".join(outcome.conditions)
            shown.append(f"{name} if {condition}" if condition else name)
        return Entry("; else ".join(shown), targets=tuple(dict.fromkeys(classes)))

    def _built(self, value: ast.expr) -> tuple[str, tuple[str, str] | None]:
        if isinstance(value, ast.Call):
            if (target := self._imported(value.func)) is not None:
                return ".".join(target), target
            found = self._resolver.infer(value.func, self._frame)
            if isinstance(found, ClassValue):
                return str(found.cls), (found.cls.module.name, found.cls.qualname)
            if isinstance(found, FunctionValue):
                return f"{found.function}()", None
        where = f"{self._function.module.path}:{value.lineno}"
        raise UnreadableError(f"{where}: no telling what {text(value)[:60]!r} builds")

    def _imported(self, name: ast.expr) -> tuple[str, str] | None:
        """The class that a name is imported as, if its home's text defines it: most homes
        are not parsed for this."""
        _, bound = self._frame.find(name.id if isinstance(name, ast.Name) else "")
        if len(bound) != 1 or not isinstance(node := bound[0].node, ast.ImportFrom):
            return None
        home, original = imported(node, self._function.module), bound[0].original
        data = self._resolver.tree.text(self._resolver.tree.path(home) or "") or b""
        defined = re.search(rb"^class %s\b" % original.encode(), data, re.MULTILINE)
        return (home, original) if defined else None

    # ---- methods

    def _methods(self) -> frozenset[str]:
        found = self._literals(_METHODS)
        if not found:
            raise UnreadableError(f"{self._config_module.path} has no {_METHODS} with texts in it")
        return found

    def _literals(self, name: str) -> frozenset[str]:
        """The texts of `X = Literal["a", Y]`, those of Y too."""
        found: set[str] = set()
        todo, seen = [name], set[str]()
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            for binding in self._config_module.scope.get(one, ()):
                value = binding.value
                if not isinstance(value, ast.Subscript) or not dotted(value.value).endswith(
                    "Literal"
                ):
                    continue
                items = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
                for item in items:
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        found.add(item.value)
                    elif isinstance(item, ast.Name):
                        todo.append(item.id)
        return frozenset(found)

    # ---- statements and conditions

    def _follow(
        self, body: Iterable[ast.stmt], method: str, open_: tuple[str, ...]
    ) -> tuple[list[_Outcome], bool]:
        """What a block comes to, and whether something may stand behind it."""
        outcomes: list[_Outcome] = []
        for statement in body:
            if isinstance(statement, ast.Return) or _assigns(statement):
                assert isinstance(statement, ast.Return | ast.Assign)
                outcomes.append(_Outcome(open_, statement.value))
                return outcomes, False
            if isinstance(statement, ast.Raise):
                return [*outcomes, _Outcome(open_, None)], False
            if isinstance(statement, ast.If):
                truth = self._truth(statement.test, method, 0)
                test = text(statement.test)
                ends: list[bool] = []
                for when, block in ((True, statement.body), (False, statement.orelse)):
                    if truth is (not when):
                        continue
                    told = (*open_, test) if truth is None and when else open_
                    found, goes_on = self._follow(block, method, told)
                    outcomes += found
                    ends.append(not goes_on)
                if all(ends):
                    return outcomes, False
            elif isinstance(statement, ast.With):
                found, goes_on = self._follow(statement.body, method, open_)
                outcomes += found
                if not goes_on:
                    return outcomes, False
            elif any(_assigns(n) or isinstance(n, ast.Return) for n in ast.walk(statement)):
                where = f"{self._function.module.path}:{statement.lineno}"
                raise UnreadableError(f"{where}: a choice inside of {type(statement).__name__}")
        return outcomes, True

    def _truth(self, test: ast.expr, method: str, depth: int) -> bool | None:
        """Whether a condition holds for a method; None if the method does not decide it."""
        if depth > _DEPTH:
            return None
        match test:
            case ast.BoolOp():
                values = [self._truth(v, method, depth + 1) for v in test.values]
                deciding = not isinstance(test.op, ast.And)  # one True decides an `or`
                if deciding in values:
                    return deciding
                return None if None in values else not deciding
            case ast.UnaryOp(op=ast.Not()):
                inner = self._truth(test.operand, method, depth + 1)
                return None if inner is None else not inner
            case ast.Compare(ops=[operator], comparators=[right]) if _is_method(test.left):
                return self._compared(operator, right, method)
            case ast.Call(func=ast.Attribute() as function, args=[], keywords=[]):
                if _is_config(function.value):
                    return self._answer(function.attr, method, depth)
            case ast.Attribute() if _is_config(test.value):
                return self._answer(test.attr, method, depth)
            case ast.Constant():
                return bool(test.value)
        return None

    def _compared(self, operator: ast.cmpop, right: ast.expr, method: str) -> bool | None:
        if isinstance(right, ast.Constant):
            if isinstance(operator, ast.Eq | ast.Is):
                return bool(method == right.value)
            if isinstance(operator, ast.NotEq | ast.IsNot):
                return bool(method != right.value)
            return None
        values: frozenset[str] | None = None
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            if all(isinstance(item, ast.Constant) for item in right.elts):
                values = frozenset(str(i.value) for i in right.elts if isinstance(i, ast.Constant))
        elif isinstance(right, ast.Call) and dotted(right.func).endswith("get_args") and right.args:
            values = self._literals(dotted(right.args[0])) or None
        if values is None or not isinstance(operator, ast.In | ast.NotIn):
            return None
        return (method in values) is isinstance(operator, ast.In)

    def _answer(self, name: str, method: str, depth: int) -> bool | None:
        """What a method or property of the config says."""
        if (name, method) not in self._answers:
            self._answers[name, method] = None  # while it is being asked: no circles
            self._answers[name, method] = self._worked_out(name, method, depth)
        return self._answers[name, method]

    def _worked_out(self, name: str, method: str, depth: int) -> bool | None:
        function = self._config.method(name)
        if function is None:
            return None
        for statement in function.node.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._truth(statement.value, method, depth + 1)
            if isinstance(statement, ast.If) and not statement.orelse:
                truth = self._truth(statement.test, method, depth + 1)
                if truth is False:
                    continue
                last = statement.body[-1]
                plain = isinstance(last, ast.Return) and isinstance(last.value, ast.Constant)
                if truth and plain and isinstance(last, ast.Return):
                    return self._truth(last.value, method, depth + 1) if last.value else None
                return None
            if not isinstance(statement, ast.Expr | ast.Assign):
                return None
        return None


def _is_config(node: ast.expr) -> bool:
    name = dotted(node)
    return name == "self" or name.rpartition(".")[2] in ("speculative_config", "spec_config")


def _is_method(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "method" and _is_config(node.value)
