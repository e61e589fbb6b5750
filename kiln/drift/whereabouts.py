"""Where a thing of some name is in a source: hints for people who look for it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cached_property

from kiln.drift.tree import Tree
from kiln.drift.values import ClassValue, FunctionValue, ModuleValue, Result

_DEFINITIONS = ((b"class", re.compile(rb"class (\w+)")), (b"def", re.compile(rb"def (\w+)")))
_KINDS: dict[type, tuple[bytes, ...]] = {ClassValue: (b"class",), FunctionValue: (b"def",)}
_SHOWN = 3  # places; a name with more is no hint


class Whereabouts:
    """Looks for names in the whole text of a source; answers are kept."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._assigned: dict[str, bool] = {}

    def find(self, name: str, value: Result, members: Iterable[str] = ()) -> str:
        """Where something of this name and kind is defined now; else like-named members."""
        if isinstance(value, ModuleValue):
            return self._modules(name)
        kinds = {ClassValue: (b"class",), FunctionValue: (b"def",)}.get(
            type(value), (b"class", b"def")
        )
        places = [place for kind in kinds for place in self._defined.get((kind, name.encode()), ())]
        if len(places) > _SHOWN:
            return ""
        if not places and (alike := difflib.get_close_matches(name, sorted(set(members)), 2, 0.8)):
            return f"the class has {' and '.join(alike)}"
        shown = []
        for path, at in places:
            line = (self._tree.text(path) or b"").count(b"\n", 0, at) + 1
            shown.append(f"{path}:{line}")
        return ", ".join(shown)

    @cached_property
    def _defined(self) -> dict[tuple[bytes, bytes], list[tuple[str, int]]]:
        """(b"def", name) -> files and places in them, from one pass over the whole text."""
        found: dict[tuple[bytes, bytes], list[tuple[str, int]]] = {}
        for path in self._tree.python:
            text = self._tree.text(path) or b""
            for kind, pattern in _DEFINITIONS:
                for match in pattern.finditer(text):
                    at = match.start()
                    before = text[text.rfind(b"\n", 0, at) + 1 : at].strip()
                    if before in (b"", b"async"):
                        found.setdefault((kind, match[1]), []).append((path, at))
        return found

    def _modules(self, name: str) -> str:
        ends = (f"/{name}.py", f"/{name}/__init__.py")
        places = [path for path in self._tree.python if path.endswith(ends)]
        return ", ".join(places) if len(places) <= _SHOWN else ""

    def assigned(self, name: str) -> bool:
        """Whether any line of the source puts the name onto an object other than self."""
        if name not in self._assigned:
            word = re.escape(name).encode()
            pattern = (
                rb"(?<!\bself)\." + word + rb"\b[ \t]*(?::[^=\n]{1,200})?=(?!=)|"
                rb"(?:setattr\([^,\n]{1,200},|\.register_\w+\()\s*[\"']" + word + rb"[\"']"
            )
            self._assigned[name] = any(True for _ in self._tree.grep(pattern, name.encode()))
        return self._assigned[name]
