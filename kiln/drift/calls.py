"""What a caller has to pass to a function or class, as far as its text says."""

from __future__ import annotations

import ast

from kiln.drift.bindings import dotted
from kiln.drift.resolve import Resolver
from kiln.drift.signature import Parameter, Signature, signature, text
from kiln.drift.syntax import Class
from kiln.drift.values import ClassValue, FunctionValue, Result

# Decorators that leave a function's parameters as they are.
_TRANSPARENT = frozenset(
    ("abstractmethod", "abc.abstractmethod", "cache", "classmethod", "contextmanager",
     "contextlib.asynccontextmanager", "contextlib.contextmanager", "functools.cache",
     "functools.lru_cache", "instrument", "lru_cache", "override", "staticmethod",
     "torch.compile", "torch.inference_mode", "torch.no_grad", "typing.override",
     "typing_extensions.override")
)  # fmt: skip
_ODD = ("__new__", "__init_subclass__", "__class_getitem__")  # their receivers are odd
_DATACLASSES = ("dataclass", "config")  # vllm.config.utils.config makes a dataclass too
_NOT_FIELDS = ("ClassVar", "KW_ONLY")


def callable_signature(resolver: Resolver, value: Result) -> Signature | None:
    """What has to be passed to a value; None if that cannot be told."""
    match value:
        case FunctionValue():
            owner = value.function.owner
            odd = value.function.node.name in _ODD or (owner is not None and owner.is_protocol)
            if odd or not set(value.function.decorators) <= _TRANSPARENT:
                return None
            found = signature(value.function.node)
            static = "staticmethod" in value.function.decorators
            return found.bound() if value.bound and not static else found
        case ClassValue():
            return _constructor(resolver, value.cls)
    return None


def _constructor(resolver: Resolver, cls: Class) -> Signature | None:
    order, outside = resolver.mro(cls)
    if any(keyword.arg == "metaclass" for item in order for keyword in item.node.keywords):
        return None
    for item in order:
        if "__new__" in item.members:
            return None
        if "__init__" in item.members:
            own = item.method("__init__")
            plain = own is not None and set(own.decorators) <= _TRANSPARENT
            return signature(own.node).bound() if own is not None and plain else None
        if item.node.decorator_list:
            return _fields(resolver, item)
    return None if outside else Signature(())


def _fields(resolver: Resolver, cls: Class) -> Signature | None:
    """The parameters of a dataclass; None for what is no plain one."""
    found: dict[str, Parameter] = {}
    order, outside = resolver.mro(cls)
    if outside:
        return None
    for item in reversed(order):
        kinds = [dotted(d.func if isinstance(d, ast.Call) else d) for d in item.node.decorator_list]
        last = [kind.rpartition(".")[2] for kind in kinds]
        if len(last) != 1 or last[0] not in _DATACLASSES:
            if item.node.body and last:
                return None
            continue
        only = _keyword_only(item.node.decorator_list[0])
        for node in item.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if any(word in text(node.annotation) for word in _NOT_FIELDS):
                if "KW_ONLY" in text(node.annotation):
                    return None
                continue
            parameter = _field(node.target.id, node.value, only)
            if parameter is None:
                found.pop(node.target.id, None)
            else:
                found[node.target.id] = parameter
    parameters = [p for p in found.values() if p.kind == "plain"]
    return Signature((*parameters, *(p for p in found.values() if p.kind == "keyword")))


def _keyword_only(decorator: ast.expr) -> bool:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return any(
        k.arg == "kw_only" and isinstance(k.value, ast.Constant) and bool(k.value.value)
        for k in keywords
    )


def _field(name: str, value: ast.expr | None, only: bool) -> Parameter | None:
    """One field; None for one that is not passed."""
    kind = "keyword" if only else "plain"
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2].lower() == "field":
        given = {k.arg: k.value for k in value.keywords}
        init = given.get("init")
        if isinstance(init, ast.Constant) and init.value is False:
            return None
        default = given.get("default") or given.get("default_factory")
        if default is None and value.args:
            default = value.args[0]
        shown = "..." if default is None or "default_factory" in given else text(default)
        return Parameter(name, kind, None if default is None else shown)
    return Parameter(name, kind, None if value is None else text(value))


def abstract(resolver: Resolver, cls: Class) -> set[str]:
    """The methods that a class inherits as abstract ones, and no class before defines."""
    found: set[str] = set()
    settled: set[str] = set()
    for item in resolver.mro(cls)[0]:
        for name in item.members:
            method = item.method(name)
            if name in settled:
                continue
            settled.add(name)
            names = set(method.decorators) if method else set()
            if {"abstractmethod", "abc.abstractmethod"} & names:
                found.add(name)
    return found
