"""Parsing only what a series changes of a patched file, since parsing takes most of the time.

The functions and classes that it leaves alone are known from the source's own file. They
are blanked out; all that is left keeps its lines.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from kiln.drift.bindings import DEFINITIONS
from kiln.drift.lines import Lines
from kiln.drift.syntax import Module
from kiln.drift.tree import parse


def parse_changed(before: Module, lines: Lines, data: bytes) -> Module:
    """The patched file's module without definitions in which nothing changes. before: the
    source's own; data: the patched file."""
    text = data.split(b"\n")
    now = {origin: number for number, origin in enumerate(lines.origin, 1) if origin}
    _blank(before.node.body, lines, now, text)
    node, why = parse(b"\n".join(text), lines.path)
    if why:  # nothing but a comment may be left of a class
        node, why = parse(data, lines.path)
    return Module(before.name, lines.path, node, data, why)


def _blank(body: Sequence[ast.stmt], lines: Lines, now: dict[int, int], text: list[bytes]) -> None:
    names = Counter(node.name for node in body if isinstance(node, DEFINITIONS))
    for node in body:
        if not isinstance(node, DEFINITIONS) or names[node.name] > 1:
            continue  # one of several is found by its number among them
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        last = node.end_lineno or first
        start, end = now.get(first, 0), now.get(last, 0)
        same = start and end - start == last - first and not lines.within(start, end)
        if same:
            text[start - 1 : end] = [b""] * (end - start + 1)
        elif isinstance(node, ast.ClassDef):
            _blank(node.body, lines, now, text)
