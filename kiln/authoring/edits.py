"""Small edits of YAML that a person wrote: only the words that must change do.

Comments, order and layout stay. Every edit is read back: what the file then says must be
what it said before but for the one change, else it is not made and the person is told
what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from kiln.errors import BadInput, KilnError
from kiln.pins.convert import convert
from kiln.pins.model import Pins
from kiln.pins.patch import Patch, PatchVersion
from kiln.pins.problems import Collector
from kiln.pins.yaml import parse

T = TypeVar("T")


def add_version(text: str, old: Patch, new: PatchVersion, shown: str) -> str:
    """patch.yaml with one more entry in `versions`, before the first of a later version."""
    versions = (*old.versions, new)
    later = [_lowest(item.range) > _lowest(new.range) for item in old.versions]
    at = later.index(True) if True in later else len(later)
    versions = (*old.versions[:at], new, *old.versions[at:])
    entry = f'{{range: "{new.range}", file: {new.file}}}'

    def edit() -> str:
        node = _child(_compose(text), "versions")
        return _insert(text, node, at, entry)

    want = msgspec.structs.replace(old, versions=versions)
    return _checked(edit, Patch, want, shown, f"add to `versions`: - {entry}")


def narrow_version(text: str, old: Patch, number: int, version: str, shown: str) -> str:
    """patch.yaml with a version taken out of the range of its entry `number` (from 0)."""
    was = old.versions[number]
    now = PatchVersion(f"{was.range},!={version}", was.file)

    def edit() -> str:
        entry = _child(_compose(text), "versions").value[number]
        node = _child(entry, "range")
        return f'{text[: node.start_mark.index]}"{now.range}"{text[node.end_mark.index :]}'

    versions = (*old.versions[:number], now, *old.versions[number + 1 :])
    want = msgspec.structs.replace(old, versions=versions)
    return _checked(edit, Patch, want, shown, f'write the range as "{now.range}"')


def set_patches(text: str, old: Pins, pin: str, ids: Sequence[str], shown: str) -> str:
    """pins.yaml with another series for a pin. A comment moves with the line below it."""
    want_pin = msgspec.structs.replace(old.pins[pin], patches=tuple(ids))
    want = msgspec.structs.replace(old, pins={**old.pins, pin: want_pin})

    def edit() -> str:
        entry = _child(_child(_compose(text), "pins"), pin)
        found = [value for key, value in entry.value if key.value == "patches"]
        if not found:
            column = entry.value[0][0].start_mark.column
            line = _line_end(text, _end(text, entry))
            return f"{text[:line]}\n{' ' * column}patches: [{', '.join(ids)}]{text[line:]}"
        return _rearranged(text, found[0], ids)

    return _checked(edit, Pins, want, shown, patches_line(ids))


def patches_line(ids: Sequence[str]) -> str:
    """The line of pins.yaml that says a series."""
    return f"patches: [{', '.join(ids)}]"


def _checked(edit: Callable[[], str], model: type[T], want: T, shown: str, by_hand: str) -> str:
    try:
        text = edit()
        problems = Collector(shown)
        if convert(parse(text, problems), model, problems) == want:
            return text
        why = "the change would change something else too"
    except (KilnError, LookupError, yaml.YAMLError) as error:
        why = str(error)
    raise BadInput(
        "authoring.by-hand",
        "the file is laid out in a way that Kiln does not edit",
        where=shown,
        why=why,
        fix=by_hand,
    )


def read_text(path: Path) -> str:
    """A file with its own line ends (which `Path.read_text` would change)."""
    return path.read_bytes().decode()


# ---- the text of a node


def _compose(text: str) -> yaml.MappingNode:
    node = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        raise LookupError("it is no mapping")
    return node


def _child(node: yaml.Node, key: str) -> yaml.Node:
    for name, value in node.value:
        if name.value == key:
            assert isinstance(value, yaml.Node)
            return value
    raise LookupError(f"it has no {key}")


def _lowest(text: str) -> tuple[object, ...]:
    """The first version that a range names, to sort by."""
    from packaging.version import InvalidVersion, Version

    for found in re.findall(r"[0-9][^,\s]*", text):
        try:
            return (0, Version(found.removesuffix(".*")))
        except InvalidVersion:
            continue
    return (1,)


def _end(text: str, node: yaml.Node) -> int:
    """The index behind the last character of a node (a block's own mark is further on)."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = int(node.end_mark.index)
    while end and text[end - 1] in "\r\n":  # a block scalar ends with its line
        end -= 1
    return end


def _line_end(text: str, at: int) -> int:
    """The index of the end of the line that `at` is in, before its line feed."""
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" else end


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _insert(text: str, node: yaml.Node, at: int, entry: str) -> str:
    """A list with an entry put in, in the list's own style."""
    if not isinstance(node, yaml.SequenceNode):
        raise LookupError("it is no list")
    items = node.value
    if node.flow_style:
        if at < len(items):
            spot = items[at].start_mark.index
            return f"{text[:spot]}{entry}, {text[spot:]}"
        spot = _end(text, items[-1])
        return f"{text[:spot]}, {entry}{text[spot:]}"
    lines = _item_lines(text, node)
    indent = _indent(text, items[0])
    if at < len(lines):
        start = lines[at][0]
        return f"{text[:start]}{indent}- {entry}{_newline(text)}{text[start:]}"
    spot = _line_end(text, _end(text, items[-1]))
    return f"{text[:spot]}{_newline(text)}{indent}- {entry}{text[spot:]}"


def _indent(text: str, item: yaml.Node) -> str:
    """What stands before the dash of an item of a block list."""
    start = text.rfind("\n", 0, item.start_mark.index) + 1
    before = text[start : item.start_mark.index]
    if not before.lstrip(" ").startswith("-"):
        raise LookupError("an item does not begin on the line of its dash")
    return before[: before.index("-")]


def _item_lines(text: str, node: yaml.Node) -> list[tuple[int, int]]:
    """Where each item of a block list begins and ends, with the comments right above it."""
    spans: list[tuple[int, int]] = []
    for item in node.value:
        start = text.rfind("\n", 0, item.start_mark.index) + 1
        bound = spans[-1][1] if spans else 0
        while start > bound:
            above = text.rfind("\n", 0, start - 1) + 1
            if above < bound or not text[above:start].lstrip().startswith("#"):
                break
            start = above
        end = text.find("\n", _end(text, item))
        spans.append((start, len(text) if end < 0 else end + 1))
    return spans


def _rearranged(text: str, node: yaml.Node, ids: Sequence[str]) -> str:
    """A list of names with other names, or in another order."""
    if not isinstance(node, yaml.SequenceNode):
        raise LookupError("`patches` is no list")
    if node.flow_style or not node.value or not ids:
        start, end = node.start_mark.index, _end(text, node)
        if "#" in text[start:end]:
            raise LookupError("a comment stands inside of the list")
        return f"{text[:start]}[{', '.join(ids)}]{text[end:]}"
    spans = _item_lines(text, node)
    indent, newline = _indent(text, node.value[0]), _newline(text)
    old = {
        item.value: text[start:end].rstrip("\r\n") + newline
        for item, (start, end) in zip(node.value, spans, strict=True)
    }
    lines = [old.get(name, f"{indent}- {name}{newline}") for name in ids]
    first, last = spans[0][0], spans[-1][1]
    whole = text[first:last].endswith("\n")
    body = "".join(lines)
    return text[:first] + (body if whole else body.removesuffix(newline)) + text[last:]
