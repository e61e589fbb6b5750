"""What an expression of a source stands for, as far as its text says: a module, a class,
a function, an instance of known classes. Nothing is run, and nothing is guessed: what
cannot be followed is OPAQUE (it exists) or None (not even that is known).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kiln.drift.bindings import Binding, FunctionNode, dotted, first_parameter
from kiln.drift.known import (
    BUILTINS,
    OBJECT_NAMES,
    PLAIN_BASES,
    outside_names,
    plain_decorators,
)
from kiln.drift.modules import DEPTH, Modules
from kiln.drift.syntax import Class, Function, Member, Module
from kiln.drift.tree import Tree
from kiln.drift.values import (
    EXTERNAL,
    NONE,
    OPAQUE,
    ClassValue,
    Frame,
    FunctionValue,
    Instance,
    Layer,
    Missing,
    ModuleValue,
    Result,
    Special,
    Value,
    reduce,
    union,
)

_WRAPPERS = frozenset(("Annotated", "ClassVar", "Final", "InitVar", "Required",
                       "SkipValidation"))  # fmt: skip
_PROPERTIES = frozenset(("property", "cached_property", "functools.cached_property"))


class Resolver(Modules):
    """Follows names through one tree."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self._mro: dict[Class, tuple[tuple[Class, ...], frozenset[str]]] = {}
        self._derived: dict[Class, tuple[Class, ...]] = {}
        self._depth = 0  # of expressions within expressions
        self._foreign: dict[tuple[int, ast.ClassDef], Class] = {}

    # ---- classes

    def class_of(self, module: Module, node: ast.ClassDef, qualname: str = "") -> Class:
        """The class of a node: one of the module, or one that a patch would put there."""
        if node in module.classes:
            return module.classes[node]
        made = Class(module, node, qualname or node.name)
        return self._foreign.setdefault((id(module), node), made)

    def mro(self, cls: Class) -> tuple[tuple[Class, ...], frozenset[str]]:
        """A class and its bases inside vLLM, in the order of look-up (first found first;
        the exact order of diamonds is not needed), and its other bases by name."""
        if cls not in self._mro:
            self._mro[cls] = ((cls,), frozenset(("...",)))  # for a circle
            order, outside = [cls], set[str]()
            for base in cls.node.bases:
                value = self.infer(base.value if isinstance(base, ast.Subscript) else base,
                                   Frame(cls.module))  # fmt: skip
                if isinstance(value, ClassValue):
                    above, others = self.mro(value.cls)
                    order += [c for c in above if c not in order]
                    outside |= others
                else:
                    name = dotted(base.value if isinstance(base, ast.Subscript) else base)
                    if name not in PLAIN_BASES:
                        outside.add(name or "...")
            self._mro[cls] = (tuple(order), frozenset(outside))
        return self._mro[cls]

    def bases(self, cls: Class) -> tuple[str, ...]:
        """The bases as written, in full where they are vLLM's."""
        found: list[str] = []
        for base in cls.node.bases:
            bare = base.value if isinstance(base, ast.Subscript) else base
            value = self.infer(bare, Frame(cls.module))
            found.append(str(value.cls) if isinstance(value, ClassValue) else dotted(bare) or "...")
        return tuple(found)

    def members(self, cls: Class, name: str) -> tuple[Member, ...]:
        """What binds a name in the first class of the order that does."""
        for item in self.mro(cls)[0]:
            if name in item.members:
                return item.members[name]
        return ()

    def closed(self, cls: Class, name: str) -> bool:
        """Whether a name that no class of the order binds is certainly no attribute."""
        order, outside = self.mro(cls)
        if any(c.is_protocol for c in order):
            return False  # whatever has what it asks for may be one
        if any(c.dynamic or c.module.why or not plain_decorators(c) for c in order):
            return False
        if any(c.quotes(name) for c in order):
            return False  # register_buffer("name", ...) and its like
        known = [outside_names(base) for base in outside]
        return all(names and name not in names for names in known)

    def derived(self, cls: Class) -> tuple[Class, ...]:
        """The subclasses of a class, at any depth."""
        if cls not in self._derived:
            found: list[Class] = []
            todo, seen = [cls], {cls}
            while todo:
                base = todo.pop()
                for other in self._subclasses(base):
                    if other not in seen:
                        seen.add(other)
                        found.append(other)
                        todo.append(other)
            self._derived[cls] = tuple(found)
        return self._derived[cls]

    def _subclasses(self, base: Class) -> Iterator[Class]:
        for path, names in self.tree.subclasses.get(base.node.name.encode(), {}).items():
            module = self.tree.at(path)
            for other in module.classes.values() if module else ():
                if other.node.name.encode() in names and base in self.mro(other)[0]:
                    yield other

    def class_attribute(self, cls: Class, name: str, instance: bool) -> Result:
        """An attribute of a class or of its instances."""
        if found := self.members(cls, name):
            key = (cls, name, instance)
            return self.once(key, lambda: self._member(found, instance))
        if name in OBJECT_NAMES:
            return EXTERNAL
        if not self.closed(cls, name):
            return None
        for below in self.derived(cls):  # what is said to be of this class may be of one below
            if any(name in c.members for c in self.mro(below)[0]) or not self.closed(below, name):
                return None
        return Missing(str(cls))

    def _member(self, members: Sequence[Member], instance: bool) -> Result:
        declared = [m for m in members if m.binding.annotation is not None]
        for member in declared:
            frame = self._frame(member)
            found = self.annotation(member.binding.annotation, frame, member.owner)
            if isinstance(found, Instance | ClassValue):
                return found
        if declared:
            return OPAQUE
        values: list[Result] = []
        for member in members:
            binding = member.binding
            if binding.kind == "def" and not member.instance and member.function:
                values.append(self._method(member.function, instance))
            elif binding.kind == "class" and isinstance(binding.node, ast.ClassDef):
                values.append(ClassValue(member.owner.module.classes[binding.node]))
            elif binding.value is not None:
                values.append(self.infer(binding.value, self._frame(member)))
            else:
                values.append(OPAQUE)
        return reduce(values)

    def _method(self, function: Function, instance: bool) -> Result:
        names = set(function.decorators)
        if names & _PROPERTIES:
            if not instance:
                return OPAQUE
            frame = Frame(function.module)
            return self.annotation(function.node.returns, frame, function.owner) or OPAQUE
        if any(name.endswith((".setter", ".deleter")) for name in names):
            return OPAQUE
        bound = "staticmethod" not in names and (instance or "classmethod" in names)
        return FunctionValue(function, bound)

    def _frame(self, member: Member) -> Frame:
        module = member.owner.module
        if member.function is None or not member.instance:
            return Frame(module, (Layer(member.owner.node, None, {}, {}),))
        return self.frame_of(member.function)

    def frame_of(self, function: Function) -> Frame:
        """The frame of a function's own lines. (Functions around it are left out.)"""
        return Frame(function.module, (Layer(function.node, function.owner, {}, {}),))

    # ---- expressions

    def infer(self, node: ast.expr, frame: Frame) -> Result:
        """What an expression stands for."""
        if len(self.busy) > DEPTH or self._depth > DEPTH:
            return None
        self._depth += 1
        try:
            return self._infer(node, frame)
        finally:
            self._depth -= 1

    def _infer(self, node: ast.expr, frame: Frame) -> Result:
        match node:
            case ast.Name():
                return self.name(node.id, frame)
            case ast.Attribute():
                return self.attribute(self.infer(node.value, frame), node.attr)
            case ast.Call():
                return self._called(node, frame)
            case ast.Await() | ast.NamedExpr():
                return self.infer(node.value, frame)
            case ast.IfExp():
                return reduce([self.infer(node.body, frame), self.infer(node.orelse, frame)])
            case ast.BoolOp():
                return reduce([self.infer(value, frame) for value in node.values])
            case ast.Constant(value=None):
                return NONE
            case (
                ast.Constant() | ast.JoinedStr() | ast.List() | ast.Dict() | ast.Tuple()
                | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp() | ast.Compare()
                | ast.UnaryOp() | ast.GeneratorExp()
            ):  # fmt: skip
                return EXTERNAL
        return None

    def attribute(self, value: Result, name: str) -> Result:
        """An attribute of what an expression stands for."""
        match value:
            case ModuleValue():
                return self.module_attribute(value.name, name)
            case ClassValue():
                return self.class_attribute(value.cls, name, instance=False)
            case Instance():
                found = [self.class_attribute(c, name, instance=True) for c in value.classes]
                there = [f for f in found if f is not None and not isinstance(f, Missing)]
                if there:
                    return reduce(there)
                return None if None in found else found[0]
            case Special.EXTERNAL | Special.NONE:
                return EXTERNAL
        return None

    def name(self, name: str, frame: Frame) -> Result:
        """What a name stands for in a frame."""
        if name in frame.hidden:
            return None
        where, bound = frame.find(name)
        if where is None:
            if any(frame.module.stars):
                found = self.module_attribute(frame.module.name, name)
                if found is not None and not isinstance(found, Missing):
                    return found
            return EXTERNAL if name in BUILTINS else None
        key = (id(where), name, id(frame.module))
        if isinstance(where, Module):
            return self.once(key, lambda: self.bound(bound, frame))
        return self.once(key, lambda: self._local(name, bound, where, frame))

    def _local(self, name: str, bound: Sequence[Binding], layer: Layer, frame: Frame) -> Result:
        if name in layer.given:
            return layer.given[name]
        node = layer.node
        owner = layer.owner
        if owner is None or not isinstance(node, FunctionNode) or len(bound) > 1:
            return self.bound(bound, frame, owner)
        if name == first_parameter(node):
            names = {dotted(d) for d in node.decorator_list}
            made = node.name in ("__new__", "__init_subclass__", "__class_getitem__")
            return ClassValue(owner) if "classmethod" in names or made else Instance((owner,))
        return self.bound(bound, frame, layer.owner)

    def bound(self, bound: Sequence[Binding], frame: Frame, owner: Class | None = None) -> Result:
        """What bindings of one name agree on."""
        for binding in bound:
            if binding.annotation is not None:
                found = self.annotation(binding.annotation, frame, owner)
                if isinstance(found, Instance | ClassValue | Special):
                    return found
        return reduce([self._one(binding, frame) for binding in bound])

    def _one(self, binding: Binding, frame: Frame) -> Result:
        node, module = binding.node, frame.module
        if isinstance(node, ast.alias):
            name = node.name if node.asname else node.name.partition(".")[0]
            found = self.module(name)
            return None if isinstance(found, Missing) else found
        if isinstance(node, ast.ImportFrom):
            return self.import_from(node, binding.original, module)
        if isinstance(node, FunctionNode):
            return FunctionValue(Function(module, node, None, node.name), bound=False)
        if isinstance(node, ast.ClassDef):
            return ClassValue(self.class_of(module, node))
        if binding.value is not None:
            return self.infer(binding.value, frame)
        return OPAQUE

    def _called(self, node: ast.Call, frame: Frame) -> Result:
        name = dotted(node.func)
        if name in ("cast", "typing.cast") and len(node.args) == 2:
            return self.annotation(node.args[0], frame, None)
        if name == "super" and not node.args:
            owners = [layer.owner for layer in frame.layers if layer.owner is not None]
            above = self.mro(owners[0])[0][1:] if owners else ()
            return Instance((above[0],)) if above else None
        called = self.infer(node.func, frame)
        match called:
            case ClassValue():
                return Instance((called.cls,))
            case FunctionValue():
                function = called.function
                if isinstance(function.node, ast.AsyncFunctionDef) or function.node.returns is None:
                    return OPAQUE
                return self.annotation(
                    function.node.returns, Frame(function.module), function.owner
                )
            case Special.EXTERNAL:
                return EXTERNAL
        return None if called is None else OPAQUE

    def annotation(self, node: ast.expr | None, frame: Frame, owner: Class | None) -> Value | None:
        """What a thing with this annotation is: an instance, a class, or EXTERNAL."""
        if node is None or len(self.busy) > DEPTH or self._depth > DEPTH:
            return None
        self._depth += 1
        try:
            return self._annotated(node, frame, owner)
        finally:
            self._depth -= 1

    def _annotated(self, node: ast.expr, frame: Frame, owner: Class | None) -> Value | None:
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, str):
                return NONE if node.value is None else EXTERNAL
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            return self.annotation(node, frame, owner)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return union([self.annotation(part, frame, owner) for part in (node.left, node.right)])
        if isinstance(node, ast.Subscript):
            head = dotted(node.value).rpartition(".")[2]
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if head in ("Union", "Optional"):
                return union([self.annotation(part, frame, owner) for part in parts])
            if head in _WRAPPERS:
                return self.annotation(parts[0], frame, owner)
            if head in ("type", "Type"):
                inner = self.annotation(parts[0], frame, owner)
                if isinstance(inner, Instance) and len(inner.classes) == 1:
                    return ClassValue(inner.classes[0])
                return OPAQUE
            return EXTERNAL
        name = dotted(node)
        if name == "Self" and owner is not None:
            return Instance((owner,))
        if name in ("Any", "typing.Any", "object", "Self", ""):
            return None
        found = self.infer(node, frame)
        if isinstance(found, ClassValue):
            return Instance((found.cls,))
        return EXTERNAL if found is EXTERNAL else None
