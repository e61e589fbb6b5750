"""The names and attributes that the lines of a patch need, in the old source and the new.

A thing is reported where the old source certainly has it and the new one certainly has
not. A name that the series itself defines is nobody else's business.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kiln.drift.finding import Finding, Kind
from kiln.drift.frames import Place
from kiln.drift.known import BUILTINS
from kiln.drift.lines import Where
from kiln.drift.resolve import Resolver
from kiln.drift.syntax import Class, Module, imported
from kiln.drift.tree import PACKAGE
from kiln.drift.values import (
    EXTERNAL,
    NONE,
    OPAQUE,
    ClassValue,
    FunctionValue,
    Instance,
    Layer,
    Missing,
    ModuleValue,
    Result,
)
from kiln.drift.walk import Walk
from kiln.drift.whereabouts import Whereabouts

_PATH = re.compile(rf"{PACKAGE}(\.[A-Za-z_]\w*)+")
Key = tuple[str, int, int]


@dataclass
class Names(Walk):
    """The names of a series in one file. patched: the old source with the series in it. The
    rest is what `run` finds."""

    patched: Resolver = field(kw_only=True)
    hints: Whereabouts = field(kw_only=True)
    findings: list[Finding] = field(default_factory=list)
    checked: set[Key] = field(default_factory=set)
    unresolved: set[Key] = field(default_factory=set)

    # ---- results

    def key(self, node: ast.AST) -> Key:
        """What a node is counted by: where it ends, for "a", "a.b" and "a.b.c" begin alike."""
        line, column = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
        return self.frames.lines.path, line, column

    def report(self, kind: Kind, name: str, breaks: bool, why: str, at: Where,
               old: str = "", new: str = "", hint: str = "") -> None:  # fmt: skip
        """Add a finding. Where the patch minds that the thing may be missing, it breaks
        nothing."""
        breaks = breaks and not self.soft
        found = Finding(at.patch, kind, name, breaks, why, (at.place,), old, new, hint)
        self.findings.append(found)

    def _hold(
        self,
        key: tuple[str, int, int],
        name: str,
        old: Result,
        new: Result,
        own: bool,
        at: Where,
        members: Iterable[str] = (),
    ) -> None:
        """A name of a module or class that the lines need, as both sources have it. own: the
        series has it."""
        last = name.rpartition(".")[2]
        if old is EXTERNAL and new is EXTERNAL:
            return
        if old is None:
            self.unresolved.add(key)
        elif isinstance(old, Missing):
            if own or (self.soft and isinstance(new, Missing)):
                return  # in the second case the patch itself says what holds without it
            if isinstance(new, Missing):
                why = "neither the source nor the series has it"
                hint = self.hints.find(last, None)
                self.report("absent", name, True, why, at, hint=hint)
            else:
                self.checked.add(key)  # only the old source lacks it
        elif isinstance(new, Missing):
            self.checked.add(key)
            hint = self.hints.find(last, old, members)
            home = name.rpartition(".")[0]
            trees = self.frames.old.resolver.tree, self.frames.new.resolver.tree
            lost = new.where == home and trees[0].has(home) and not trees[1].has(home)
            why = f"{'its module' if lost else 'it'} is not there any more"
            self.report("gone", name, True, why, at, shown(old), "", hint)
        elif new is None:
            self.unresolved.add(key)
        else:
            self.checked.add(key)

    # ---- imports, and texts that name modules

    def found_import(self, node: ast.Import | ast.ImportFrom, at: Where) -> None:
        """See `Walk`."""
        old, new = self.frames.old, self.frames.new
        for alias in node.names:
            key = self.key(alias)
            if isinstance(node, ast.Import):
                name = alias.name
                results = [side.resolver.module(name) for side in (old, new)]
                patched = self.patched.module(name)
            elif alias.name == "*":
                continue
            else:
                target = imported(node, self.frames.module)
                name = f"{target}.{alias.name}"
                results = [
                    side.resolver.import_from(node, alias.name, self.frames.module)
                    for side in (old, new)
                ]
                patched = self.patched.import_from(node, alias.name, self.frames.module)
            self._hold(key, name, results[0], results[1], _there(patched), at)

    def found_text(self, node: ast.Constant, at: Where) -> None:
        """A text that names a module, class or function of vLLM."""
        if not isinstance(node.value, str) or not _PATH.fullmatch(node.value):
            return
        old, new, patched = (
            _follow(resolver, node.value)
            for resolver in (self.frames.old.resolver, self.frames.new.resolver, self.patched)
        )
        if isinstance(old, Missing):
            return  # texts may be anything: what was never there is no name
        self._hold(self.key(node), node.value, old, new, _there(patched), at)

    # ---- names

    def found_name(self, node: ast.Name, place: Place, at: Where) -> None:
        """See `Walk`."""
        if node.id in place.old.hidden:
            return
        where, bound = place.old.find(node.id)
        key = self.key(node)
        if where is None:
            if node.id not in BUILTINS:
                found = self.frames.old.resolver.name(node.id, place.old)
                if found is None:
                    self.unresolved.add(key)
            return
        if not bound or self._bound_by_series(node.id, where, place):
            return
        if place.new is None:
            return
        self.checked.add(key)
        there, _ = place.new.find(node.id)
        if there is not None or node.id in BUILTINS:
            return
        if place.missing and isinstance(where, Layer):
            return  # the function is gone as a whole, which is reported as such
        functions = [layer.node for layer in place.new.layers if layer.node is not None]
        if place.new.module.stars or any(_stores(function, node.id) for function in functions):
            self.unresolved.add(key)
            return
        module = self.frames.old.module
        home = module.name if module else ""
        scope = f"{home}.{place.qualname}:" if isinstance(where, Layer) else f"{home}."
        why = (
            f"{place.qualname} has no such name any more" if isinstance(where, Layer)
            else "the module has no such name any more"
        )  # fmt: skip
        value = self.frames.old.resolver.name(node.id, place.old)
        hint = "" if isinstance(where, Layer) else self.hints.find(node.id, value)
        self.report("gone", scope + node.id, True, why, at, hint=hint)

    def _bound_by_series(self, name: str, where: Layer | Module, place: Place) -> bool:
        """Whether only lines of the series bind a name."""
        if isinstance(where, Layer):
            owned = where.node is not None and self.frames.is_own(where.node)
            return owned or name not in where.scope or name in where.extra
        return self.frames.lines.whole or name not in where.scope or name in place.old.extra

    # ---- attributes

    def found_attribute(self, node: ast.Attribute, place: Place, at: Where) -> None:
        """See `Walk`."""
        self.member(node, node.value, node.attr, place, at)

    def member(self, node: ast.expr, value: ast.expr, name: str, place: Place, at: Where) -> None:
        """An attribute of what `value` stands for; `node` reads or sets it."""
        load = not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load)
        if place.new is None:
            return
        key, sides = self.key(node), (self.frames.old.resolver, self.frames.new.resolver)
        base = sides[0].infer(value, place.old)
        if base is EXTERNAL or base is NONE:
            return
        if base is None and isinstance(value, ast.Attribute):
            return  # it was counted with the attribute before
        if base is None or base is OPAQUE or isinstance(base, Missing | FunctionValue):
            if not isinstance(base, FunctionValue):
                self.unresolved.add(key)
            return
        old = sides[0].attribute(base, name)
        base_new = sides[1].infer(value, place.new)
        if base_new is None or base_new is OPAQUE or isinstance(base_new, Missing):
            if not isinstance(base_new, Missing) and old is not EXTERNAL:
                self.unresolved.add(key)
            return
        new = sides[1].attribute(base_new, name)
        if isinstance(new, Missing) and (place.narrows(value) or self.hints.assigned(name)):
            new = None  # a test around says what it is, or somebody puts it there from outside
        if (isinstance(old, Missing) or old is None) and (not load or self._adds(base, name)):
            return
        full, members = self._described(base, base_new, name)
        minds = place.minds(value, name)
        self.soft += minds
        self._hold(key, full, old, new, False, at, members)
        self.soft -= minds

    def _adds(self, base: Result, name: str) -> bool:
        """Whether the series gives what an expression stands for an attribute."""
        match base:
            case Instance() | ClassValue():
                classes = base.classes if isinstance(base, Instance) else (base.cls,)
                order = (c for cls in classes for c in self.frames.old.resolver.mro(cls)[0])
                again = (same_class(self.patched, cls) for cls in order)
                return any(name in cls.members for cls in again if cls is not None)
            case ModuleValue():
                return _there(self.patched.attribute(base, name))
        return False

    def _described(self, base: Result, after: Result, name: str) -> tuple[str, list[str]]:
        """The attribute's full name, and the names that the class has now, for a hint."""
        resolver = self.frames.old.resolver
        match base:
            case ModuleValue():
                return f"{base.name}.{name}", []
            case ClassValue() | Instance():
                cls = base.cls if isinstance(base, ClassValue) else base.classes[0]
                found = resolver.members(cls, name)
                classes: Sequence[Class] = ()
                if isinstance(after, ClassValue | Instance):
                    classes = (after.cls,) if isinstance(after, ClassValue) else after.classes
                order = [c for item in classes for c in self.frames.new.resolver.mro(item)[0]]
                return f"{found[0].owner if found else cls}.{name}", [
                    m for c in order for m in c.members
                ]
        return name, []


def _there(found: Result) -> bool:
    return found is not None and not isinstance(found, Missing)


def _stores(function: ast.AST, name: str) -> bool:
    """Whether a function binds a name anywhere, within expressions too."""
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        for n in ast.walk(function)
    )


def same_class(resolver: Resolver, cls: Class) -> Class | None:
    """A class of another tree, by its name."""
    module = resolver.tree.module(cls.module.name)
    found = (c for c in module.classes.values() if c.qualname == cls.qualname) if module else ()
    return next(iter(found), None)


def _follow(resolver: Resolver, path: str) -> Result:
    """What a dotted path of vLLM names."""
    parts = path.split(".")
    value: Result = ModuleValue(parts[0])
    for part in parts[1:]:
        if value is None or isinstance(value, Missing):
            return value
        value = resolver.attribute(value, part)
    return value


def shown(value: Result) -> str:
    """A value for people: its full name, and a function's signature."""
    match value:
        case ModuleValue():
            return value.name
        case ClassValue():
            return f"{value.cls}"
        case FunctionValue():
            return f"{value.function}"
        case Instance():
            return "an instance of " + " or ".join(str(c) for c in value.classes)
    return ""
