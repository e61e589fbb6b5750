"""What became of the functions and classes that the hunks of a patch stand in."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kiln.drift.bindings import FunctionNode, bindings
from kiln.drift.finding import Finding, Kind
from kiln.drift.frames import Definition, Frames
from kiln.drift.lines import Where
from kiln.drift.parsers import REASONING, TOOLS, read_parsers
from kiln.drift.proposers import read_v1, read_v2
from kiln.drift.resolve import Resolver
from kiln.drift.section import Section, UnreadableError
from kiln.drift.signature import changes, signature, text
from kiln.drift.syntax import Class, Function, Module, imported
from kiln.drift.values import ClassValue, FunctionValue
from kiln.drift.whereabouts import Whereabouts

_HUBS = ("/registry.py", "/__init__.py")
_SERVED: dict[str, Callable[[Resolver], Section | None]] = {
    "tool parser": lambda resolver: read_parsers(resolver, TOOLS),
    "reasoning parser": lambda resolver: read_parsers(resolver, REASONING),
    "V1 proposer for method": read_v1,
    "V2 proposer for method": read_v2,
}


class Served:
    """Which names of launches each class of a source serves, itself or as a base."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._targets: dict[tuple[str, str], set[str]] = {}  # class -> "tool parser hermes", ...
        self.behind: dict[str, str] = {}  # "tool parser hermes" -> what serves it
        for label, read in _SERVED.items():
            try:
                section = read(resolver)
            except UnreadableError:
                continue  # compare_contracts says so
            for name, entry in (section.entries if section else {}).items():
                self.behind[f"{label} {name}"] = entry.text
                for target in entry.targets:
                    self._targets.setdefault(target, set()).add(f"{label} {name}")

    def by(self, cls: Class) -> frozenset[str]:
        """What a class serves, or the classes that are derived from it."""
        found: set[str] = set()
        if not self._resolver.tree.below(cls.node.name) & {name for _, name in self._targets}:
            return frozenset()
        for one in (cls, *self._resolver.derived(cls)):
            found |= self._targets.get((one.module.name, one.qualname), set())
        return frozenset(found)


@dataclass(frozen=True)
class Sources:
    """Both sources, pristine, and what is looked up in them once for all patches."""

    old: Resolver
    new: Resolver
    served: tuple[Served, Served]
    hints: Whereabouts


def check_hooks(frames: Frames, sources: Sources) -> list[Finding]:
    """Findings about the definitions that the hunks of a series stand in. (`frames` is of a
    file that the source has.)"""
    found: list[Finding] = []
    for chain, wheres in _hooked(frames).items():
        about = list(_Hook(frames, sources).check(chain))
        for where in wheres:
            parts = {"patch": where.patch, "places": (where.place,)}
            found += [msgspec.structs.replace(one, **parts) for one in about]
    return found


def _hooked(frames: Frames) -> dict[tuple[Definition, ...], list[Where]]:
    """The innermost definitions of the source itself around each changed line, and for each
    patch that changes something there one place where it does."""
    found: dict[tuple[Definition, ...], list[Where]] = {}
    for line, wheres in sorted(frames.lines.spots.items()):
        chain: tuple[Definition, ...] = ()
        body: Sequence[ast.AST] = frames.module.node.body
        while (inner := _around(body, line)) is not None and not frames.is_own(inner):
            chain, body = (*chain, inner), inner.body
        if chain:
            there = found.setdefault(chain, [])
            there += [w for w in wheres if w.patch not in {known.patch for known in there}]
    return found


def _around(body: Sequence[ast.AST], line: int) -> Definition | None:
    """The definition in a block, or in the blocks within it, that holds a line."""
    for node in body:
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if isinstance(node, FunctionNode | ast.ClassDef):
            if first <= line <= last:
                return node
        elif isinstance(node, ast.excepthandler | ast.match_case) or first <= line <= last:
            inner = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
            if (found := _around(inner, line)) is not None:
                return found
    return None


class _Hook:
    """One definition in which something is changed; its findings belong to no patch yet."""

    def __init__(self, frames: Frames, sources: Sources) -> None:
        self._frames, self._sources = frames, sources

    def _finding(self, kind: Kind, name: str, breaks: bool, why: str,
                 old: str = "", new: str = "", hint: str = "") -> Finding:  # fmt: skip
        return Finding("", kind, name, breaks, why, (), old, new, hint)

    def check(self, chain: tuple[Definition, ...]) -> Iterator[Finding]:
        """All that is to be said of it."""
        old, new = self._frames.old.module, self._frames.new.module
        if old is None or (new is not None and new.why):
            return
        names = [node.name for node in chain]
        before = _locate(old, chain)
        if before is None:
            return
        after = _locate(new, chain) if new is not None else None
        classes = self._classes(chain, old), self._classes(chain, new) if new else None
        if classes[0] is not None:
            yield from self._class(classes[0], classes[1])
        if isinstance(before, FunctionNode):
            owner = classes[0] if len(chain) > 1 and isinstance(chain[-2], ast.ClassDef) else None
            function = Function(old, before, owner, ".".join(names))
            if isinstance(after, FunctionNode):
                yield from self._function(function, after)
            elif owner is None or classes[1] is not None:
                yield self._function_gone(function, owner, classes[1])
            if owner is not None:
                yield from self._overridden(function, owner, classes[1])

    def _classes(self, chain: Sequence[Definition], module: Module | None) -> Class | None:
        """The innermost class around, in a source."""
        if module is None:
            return None
        last = max((n for n, d in enumerate(chain) if isinstance(d, ast.ClassDef)), default=-1)
        node = _locate(module, chain[: last + 1]) if last >= 0 else None
        return module.classes.get(node) if isinstance(node, ast.ClassDef) else None

    # ---- functions

    def _function(self, old: Function, new: FunctionNode) -> Iterator[Finding]:
        before, after = signature(old.node), signature(new)
        if told := changes(before, after):
            why = f"the function that the hunk stands in {'; '.join(told)}"
            yield self._finding("signature", str(old), False, why, str(before), str(after))

    def _function_gone(self, old: Function, owner: Class | None, cls: Class | None) -> Finding:
        name, hint = old.node.name, ""
        if owner is not None and cls is not None:
            heir = next((c for c in self._sources.new.mro(cls)[0][1:] if name in c.members), None)
            hint = f"{cls} now has it from {heir}" if heir else ""
        hint = hint or self._sources.hints.find(name, FunctionValue(old, False))
        why = "the function that the hunk stands in is not there any more"
        return self._finding("gone", str(old), True, why, str(signature(old.node)), "", hint)

    def _overridden(
        self, function: Function, owner: Class, later: Class | None
    ) -> Iterator[Finding]:
        """Subclasses that now have the method themselves, and do not call this one."""
        name = function.node.name
        if later is None or name.startswith("__"):
            return
        before = {str(c) for c in self._sources.old.derived(owner) if name in c.members}
        for cls in self._sources.new.derived(later):
            if name not in cls.members or str(cls) in before:
                continue
            method = cls.method(name)
            if method is not None and _calls_super(method.node):
                continue
            serves = sorted(self._sources.served[1].by(cls))
            used = f" ({', '.join(serves)})" if serves else ""
            why = f"{cls}{used} has the method itself now, so the patch does not reach it"
            yield self._finding("overridden", str(function), False, why, str(owner), str(cls))

    # ---- classes

    def _class(self, old: Class, new: Class | None) -> Iterator[Finding]:
        if new is None:
            hint = self._sources.hints.find(old.node.name, ClassValue(old))
            why = "the class that the hunk stands in is not there any more"
            yield self._finding("gone", str(old), True, why, str(old), "", hint)
        else:
            yield from self._bases(old, new)
            yield from self._not_built(old, new)

    def _bases(self, old: Class, new: Class) -> Iterator[Finding]:
        if _base_names(old) == _base_names(new):
            return  # as for most, whose bases need not be parsed then
        bases = self._sources.old.bases(old), self._sources.new.bases(new)
        if bases[0] != bases[1]:
            why = "the class that the hunk stands in has other bases"
            shown = (", ".join(b) or "none" for b in bases)
            yield self._finding("bases", str(old), False, why, *shown)

    def _not_built(self, old: Class, new: Class) -> Iterator[Finding]:
        served = [one.by(cls) for one, cls in zip(self._sources.served, (old, new), strict=True)]
        behind = [one.behind for one in self._sources.served]
        lost = sorted(served[0] - served[1])
        if lost:
            instead = "; ".join(f"{name}: {behind[1].get(name, 'nothing')}" for name in lost)
            why = f"vLLM uses it no more for {', '.join(lost)}"
            # Where it serves nothing any more, the patch's lines are never reached.
            yield self._finding("not-built", str(old), not served[1], why, ", ".join(lost), instead)
        elif not served[0] and self._forgotten(old, new):
            why = "no other file names the class any more, so nothing can be using it"
            yield self._finding("not-built", str(old), True, why)

    def _forgotten(self, old: Class, new: Class) -> bool:
        """Whether a file beside the class's own, or a registry, named it, and none does now."""
        near = self._mentions(self._sources.new, new, near=True)
        return not near and (
            self._mentions(self._sources.old, old, near=True)
            and not self._mentions(self._sources.new, new, near=False)
        )

    def _mentions(self, resolver: Resolver, cls: Class, near: bool) -> bool:
        """Whether a class is named anywhere but in its own file. near: only in those files
        where most are named; to look through all takes time."""
        word, own, tree = cls.node.name.encode(), cls.module.path, resolver.tree
        pattern = re.compile(rb"\b%s\b" % re.escape(word))
        folder = own.rpartition("/")[0]
        for path in tree.python:
            if path == own or (near and not path.startswith(folder) and not path.endswith(_HUBS)):
                continue
            data = tree.text(path) or b""
            if word in data and pattern.search(data):
                return True
        return False


def _base_names(cls: Class) -> list[str]:
    """The bases with where they are imported from, as the class's own file says."""
    found: list[str] = []
    for base in cls.node.bases:
        name = text(base)
        bound = cls.module.scope.get(name, ())
        if len(bound) == 1 and isinstance(node := bound[0].node, ast.ImportFrom):
            name = f"{imported(node, cls.module)}.{bound[0].original}"
        found.append(name)
    return found


def _locate(module: Module, chain: Sequence[Definition]) -> Definition | None:
    """The definition of the same qualified name; None if there is not just one."""
    scope: Module | Definition = module
    found: Definition | None = None
    for node in chain:
        names = module.scope if isinstance(scope, Module) else bindings(scope)
        kind = ast.ClassDef if isinstance(node, ast.ClassDef) else FunctionNode
        there = [b.node for b in names.get(node.name, ()) if isinstance(b.node, kind)]
        plain = [n for n in there if isinstance(n, FunctionNode | ast.ClassDef)]
        if len(plain) != 1:
            return None
        scope = found = plain[0]
    return found


def _calls_super(node: FunctionNode) -> bool:
    return any(
        isinstance(n, ast.Attribute)
        and n.attr == node.name
        and isinstance(n.value, ast.Call)
        and isinstance(n.value.func, ast.Name)
        and n.value.func.id == "super"
        for n in ast.walk(node)
    )
