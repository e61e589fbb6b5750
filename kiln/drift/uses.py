"""What the lines of a patch call and override, in the old source and in the new one.

A call is reported where both sources have what it calls, and it no longer fits.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from kiln.drift.bindings import FunctionNode, dotted
from kiln.drift.calls import abstract, callable_signature
from kiln.drift.frames import Place
from kiln.drift.lines import Where
from kiln.drift.names import Names, same_class, shown
from kiln.drift.resolve import Resolver
from kiln.drift.signature import (
    Parameter,
    Shape,
    Signature,
    changes,
    misfit,
    moved,
    shape,
    signature,
    too_narrow,
)
from kiln.drift.syntax import Class, Function
from kiln.drift.values import (
    OPAQUE,
    ClassValue,
    FunctionValue,
    Instance,
    Missing,
    ModuleValue,
    Result,
    Special,
    Value,
)
from kiln.drift.walk import Given


@dataclass
class Uses(Names):
    """All that a series uses in one file. calls: functions of the series that the lines
    call, each with what it is given."""

    calls: list[tuple[FunctionNode, Given]] = field(default_factory=list)

    # ---- calls

    def found_call(self, node: ast.Call, place: Place) -> None:
        """See `Walk`."""
        parts = [node, *node.args, *(k.value for k in node.keywords)]
        at = next((found for part in parts if (found := self.at(part))), None)
        if not at:
            return
        if dotted(node.func) in ("getattr", "hasattr") and len(node.args) >= 2:
            named = node.args[1]
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                minds = len(node.args) > 2 or dotted(node.func) == "hasattr"
                self.soft += minds
                self.member(node, node.args[0], named.value, place, at)
                self.soft -= minds
            return
        if place.new is None:
            return
        old, new = (
            side.resolver.infer(node.func, frame)
            for side, frame in ((self.frames.old, place.old), (self.frames.new, place.new))
        )
        self._pass_on(node, old, place)
        if isinstance(old, Missing | Special) or old is None:
            return  # what cannot be followed is counted with the name that is called
        if isinstance(node.func, ast.Attribute) and place.narrows(node.func.value):
            return  # a test around says that it is another thing's
        if isinstance(new, Missing) or new is None:
            return
        before = callable_signature(self.frames.old.resolver, old)
        after = callable_signature(self.frames.new.resolver, new)
        if before is None or after is None:
            self.unresolved.add((*self.key(node)[:2], -self.key(node)[2] - 1))
            return
        self._compare_call(shape(node), old, before, after, at)

    def _compare_call(
        self, call: Shape, called: Value, old: Signature, new: Signature, at: Where
    ) -> None:
        told = changes(old, new)
        fault = misfit(call, new) or moved(call, old, new)
        if fault and (added := self._added(called, old)):
            fault = misfit(call, new.plus(added)) or moved(call, old, new)
        if not fault and not told:
            return
        why = "the patch's call still fits, by its shape"
        if fault:
            why = f"the patch {fault}"
        elif call.star or call.stars:
            why = "whether the patch's call still fits, nobody can tell from its text"
        if told:
            why = f"it {'; '.join(told)}; {why}"
        self.report("signature", shown(called), bool(fault), why, at, str(old), str(new))

    def _added(self, called: Value, old: Signature) -> list[Parameter]:
        """The parameters that the series itself gives to a function or class."""
        again: Result = None
        if isinstance(called, ClassValue):
            cls = same_class(self.patched, called.cls)
            again = ClassValue(cls) if cls else None
        elif isinstance(called, FunctionValue):
            function = called.function
            if function.owner is None:
                again = self.patched.module_attribute(function.module.name, function.qualname)
            elif (cls := same_class(self.patched, function.owner)) is not None:
                same = cls.method(function.node.name)
                again = FunctionValue(same, called.bound) if same else None
        found = callable_signature(self.patched, again)
        return [p for p in found.named.values() if p.name not in old.named] if found else []

    def _pass_on(self, node: ast.Call, old: Result, place: Place) -> None:
        """Remember what a function of the series is given."""
        function = old.function if isinstance(old, FunctionValue) else None
        if isinstance(old, ClassValue):
            function = old.cls.method("__init__")
        if function is None or place.new is None:
            return
        names = [a.arg for a in (*function.node.args.posonlyargs, *function.node.args.args)]
        if isinstance(old, ClassValue) or (isinstance(old, FunctionValue) and old.bound):
            names = names[1:]
        pairs: list[tuple[str, ast.expr]] = []
        for name, argument in zip(names, node.args, strict=False):
            if isinstance(argument, ast.Starred):
                break
            pairs.append((name, argument))
        pairs += [(k.arg, k.value) for k in node.keywords if k.arg]
        given: dict[str, tuple[Value | None, Value | None]] = {}
        for name, argument in pairs:
            a = self.frames.old.resolver.infer(argument, place.old)
            b = self.frames.new.resolver.infer(argument, place.new)
            if isinstance(a, Instance | ClassValue | ModuleValue):
                later = b if isinstance(b, Instance | ClassValue | ModuleValue) else OPAQUE
                given[name] = (a, later)
        if given:
            self.calls.append((function.node, given))

    # ---- classes of the series, and methods that it adds

    def found_class(self, node: ast.ClassDef, place: Place) -> None:
        """Methods of the series that stand in for those of vLLM's bases."""
        if place.new is None or self.frames.old.module is None or self.frames.new.module is None:
            return
        layers = place.old.layers[0], place.new.layers[0]
        owners = [owner for owner in (layers[0].owner, layers[1].owner) if owner is not None]
        if len(owners) < 2:
            return
        self._abstract(node, owners[0], owners[1])
        for method in node.body:
            at = self.at(method)
            if not isinstance(method, FunctionNode) or at is None:
                continue
            if method.name.startswith("__"):
                continue
            found = [
                _inherited(side.resolver, cls, method.name)
                for side, cls in zip((self.frames.old, self.frames.new), owners, strict=True)
            ]
            self._override(method, found[0], found[1], owners[1], at)

    def _abstract(self, node: ast.ClassDef, old: Class, new: Class) -> None:
        """What a class that the patch adds must define in the new source, and does not."""
        at = self.at(node)
        if at is None:
            return
        resolvers = self.frames.old.resolver, self.frames.new.resolver
        missing = abstract(resolvers[1], new) - abstract(resolvers[0], old)
        for name in sorted(missing):
            method = _inherited(resolvers[1], new, name)
            why = f"it is abstract now, so {node.name} of the patch cannot be built without it"
            now = str(signature(method.node)) if method else ""
            full = str(method) if method else f"{new}.{name}"
            self.report("signature", full, True, why, at, "", now)

    def _override(
        self,
        method: FunctionNode,
        old: Function | None,
        new: Function | None,
        cls: Class,
        at: Where,
    ) -> None:
        resolver = self.frames.new.resolver
        if old is None:
            return
        if new is None:
            order, outside = resolver.mro(cls)
            if not outside and not any(method.name in c.members for c in order[1:]):
                why = "the patch overrides it, and nothing calls that any more"
                hint = self.hints.find(method.name, FunctionValue(old, True))
                self.report("gone", str(old), True, why, at, str(signature(old.node)), hint=hint)
            return
        before, after = signature(old.node), signature(new.node)
        told = changes(before, after)
        if told:
            fault = too_narrow(signature(method), after)
            why = f"it {'; '.join(told)}; the patch's override {fault or 'still fits'}"
            self.report("signature", str(new), bool(fault), why, at, str(before), str(after))


def _inherited(resolver: Resolver, cls: Class, name: str) -> Function | None:
    """The method that a class would have without its own."""
    for base in resolver.mro(cls)[0][1:]:
        if name in base.members:
            return base.method(name)
    return None
