"""What one contract of one source says: names, and what is behind each."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kiln.drift.bindings import dotted
from kiln.drift.resolve import Resolver
from kiln.drift.syntax import Class
from kiln.drift.values import ClassValue, Result


class UnreadableError(Exception):
    """The contract has a layout that cannot be read; str() says why, with the place."""


@dataclass(frozen=True)
class Behind:
    """Whose lines a name runs. own: the class, what a factory makes it from, and their
    bases in the same files. bases: the others, inside vLLM."""

    own: tuple[Class, ...] = ()
    bases: tuple[Class, ...] = ()


@dataclass(frozen=True)
class Entry:
    """What is behind one name. text: what is compared and shown. reading: for variables,
    how the text of one becomes its value. targets: module and name of the classes. exact:
    the text is the value itself, not only how it is written."""

    text: str
    reading: str = ""
    targets: tuple[tuple[str, str], ...] = ()
    exact: bool = True


def behind(resolver: Resolver, targets: Iterable[tuple[str, str]]) -> Behind:
    """The classes behind an entry. One that a factory makes stands for the classes that the
    factory is given ("XToolAdapter, XReasoningAdapter = make_adapters(XParser)")."""
    own: list[Class] = []
    bases: list[Class] = []
    todo = list(targets)
    seen: set[tuple[str, str]] = set()
    while todo:
        where = todo.pop(0)
        if where in seen:
            continue
        seen.add(where)
        value = resolver.module_attribute(*where)
        if isinstance(value, ClassValue):
            order, _ = resolver.mro(value.cls)
            own.append(value.cls)
            homes = {cls.module for cls in own}
            own += [cls for cls in order if cls.module in homes and cls not in own]
            bases += [cls for cls in order if cls.module not in homes and cls not in bases]
            todo += [
                (cls.module.name, dotted(base))
                for cls in order
                for base in cls.node.bases
                if dotted(base) and not isinstance(_value(resolver, cls, base), ClassValue)
            ]
        elif (origin := resolver.origin(*where)) is not None:
            home, binding = origin
            made = binding.node.value if isinstance(binding.node, ast.Assign) else None
            given = made.args if isinstance(made, ast.Call) else [made] if made else []
            todo += [(home.name, dotted(item)) for item in given if dotted(item)]
    return Behind(tuple(own), tuple(bases))


def _value(resolver: Resolver, cls: Class, base: ast.expr) -> Result:
    return resolver.module_attribute(cls.module.name, dotted(base))


@dataclass(frozen=True)
class Section:
    """One contract. unread: the places of entries that could not be read, beside those
    that could. built_for: "cuda", "cpu", ... where that decides what there is."""

    entries: Mapping[str, Entry]
    unread: tuple[str, ...] = ()
    built_for: str = ""


@dataclass(frozen=True)
class Kept:
    """How much of some classes' text is left in others. Lines are counted without blanks,
    comments and indentation."""

    old: int
    new: int
    common: int

    @property
    def share(self) -> float:
        """Of the old lines, from 0 (nothing is left) to 1 (all of them are)."""
        return self.common / self.old if self.old else 1.0

    def __str__(self) -> str:
        return f"{self.common} of {self.old} lines are still among its {self.new}"


@dataclass
class Texts:
    """Lines of classes, as text; each class is cut out once."""

    _lines: dict[Class, Counter[bytes]] = field(default_factory=dict)

    def kept(self, old: Iterable[Class], new: Iterable[Class]) -> Kept:
        """Compare two groups of classes."""
        a, b = self._all(old), self._all(new)
        return Kept(a.total(), b.total(), (a & b).total())

    def _all(self, classes: Iterable[Class]) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for cls in classes:
            found.update(self._of(cls))
        return found

    def _of(self, cls: Class) -> Counter[bytes]:
        if cls not in self._lines:
            lines = cls.module.lines[cls.node.lineno - 1 : cls.node.end_lineno]
            bare = (line.strip() for line in lines)
            self._lines[cls] = Counter(b for b in bare if b and not b.startswith(b"#"))
        return self._lines[cls]
