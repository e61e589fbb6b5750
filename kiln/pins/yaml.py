"""YAML with positions: a file that a person wrote, as nodes that know their line.

PyYAML's event stream (libyaml's, where there is one) is built into a small tree here.
The events come one by one, so depth, size and aliases are bounded before anything
large exists; nothing is ever constructed from a tag. Scalars keep the text as written
and the type that YAML 1.1 gives it: the models (kiln/pins/convert.py) decide whether
that is what they want.

    document = load_document(root / "pins.yaml", Pins, shown="pins.yaml")
    document.value.default, document.where("pins", "dev748", "base")
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import yaml
from msgspec import Struct

from kiln.errors import BadInput
from kiln.pins.problems import Collector

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_ALIASED = 10_000  # nodes that a file may gain by its aliases

Kind = Literal["text", "int", "float", "bool", "null", "time"]


class Scalar(Struct):
    """A leaf. text: as written, without quotes. kind: what YAML 1.1 takes it for."""

    line: int
    column: int
    text: str
    kind: Kind
    size: int = 1


class List(Struct):
    """A sequence. size: nodes in it and below, aliases counted in full."""

    line: int
    column: int
    items: list[Node] = []
    size: int = 1


class Map(Struct):
    """A mapping, in the file's order; each key once. size: as a List's."""

    line: int
    column: int
    items: dict[str, tuple[Scalar, Node]] = {}
    size: int = 1


Node: TypeAlias = "Scalar | List | Map"
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Document(Generic[T]):
    """A file, read: its value, and where each part of it stands.

    shown: the name of the file in messages.
    """

    shown: str
    value: T
    root: Node

    def where(self, *path: str | int, key: bool = False) -> str:
        """ "pins.yaml:12:5" for a path of keys and list indexes.

        The place of a value that begins on its key's line is its own, that of any other
        value is its key's; with `key` it is always the key's. Where the path leads
        further than the file does, its last part that is there counts.
        """
        line, column, node = self.root.line, self.root.column, self.root
        for part in path:
            if isinstance(node, Map) and part in node.items:
                name, node = node.items[str(part)]
                spot = name if key or node.line != name.line else node
                line, column = spot.line, spot.column
            elif isinstance(node, List) and isinstance(part, int) and part < len(node.items):
                node = node.items[part]
                line, column = node.line, node.column
            else:
                break
        return f"{self.shown}:{line}:{column}"


def load(path: Path, model: type[T], *, shown: str | None = None) -> T:
    """The file as a model. Raises BadInput, or Problems with all that is wrong in it."""
    return load_document(path, model, shown=shown).value


def load_document(path: Path, model: type[T], *, shown: str | None = None) -> Document[T]:
    """As `load`, with the positions kept."""
    name = shown or str(path)
    return parse_document(read(path, name), model, name)


def parse_document(text: str, model: type[T], shown: str) -> Document[T]:
    """A file's text as a model, with positions. Raises as `load` does."""
    from kiln.pins.convert import convert

    # One collector for both passes: a key that stands twice does not hide other problems.
    problems = Collector(shown)
    root = parse(text, problems)
    return Document(shown, convert(root, model, problems), root)


def read(path: Path, shown: str) -> str:
    """The text of a file of at most MAX_BYTES, in UTF-8.

    Raises BadInput: pins.not-found, pins.unreadable, pins.too-large, pins.not-utf8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput("pins.unreadable", "this is not a file", where=shown)
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise BadInput("pins.not-found", "there is no such file", where=shown) from error
    except OSError as error:
        raise BadInput(
            "pins.unreadable", "the file cannot be read", where=shown, why=str(error)
        ) from error
    if len(data) > MAX_BYTES:
        raise BadInput(
            "pins.too-large",
            "the file is too large",
            where=shown,
            why=f"at most {MAX_BYTES} bytes are read",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        raise BadInput(
            "pins.not-utf8",
            "the file is not in UTF-8",
            where=f"{shown}:{_place(before)}",
            why=f"byte 0x{data[error.start]:02x}: {error.reason}",
            fix="save it in UTF-8",
        ) from error


def parse(text: str, problems: Collector) -> Node:
    """The text's one document as nodes.

    Raises where the YAML cannot be read on; notes in `problems` what else is wrong.
    """
    return _Builder(text, problems).build()


# The C loader lacks nothing here; the other reads the same, ten times slower.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"
_KINDS: dict[str, Kind] = {
    "str": "text",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "null": "null",
    "timestamp": "time",
    "value": "text",
}
_UNPRINTABLE = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


class _Open(Struct):
    """A collection whose end has not come yet. key: the one that waits for its value."""

    node: List | Map
    anchor: str | None
    key: Scalar | None = None
    waiting: bool = False  # a key was read (key is None where it was refused)


class _Builder:
    def __init__(self, text: str, problems: Collector) -> None:
        self._text, self._problems = text, problems
        self._anchors: dict[str, Node | None] = {}  # None: its node is not closed yet
        self._stack: list[_Open] = []
        self._root: Node | None = None
        self._aliased = 0

    def build(self) -> Node:
        try:
            self._loader = _LOADER(self._text)
            self._read_events()
        except yaml.YAMLError as error:
            self._syntax(error)
        root = self._root
        if root is None or (isinstance(root, Scalar) and root.kind == "null"):
            self._problems.fatal("pins.empty", "the file holds nothing", root)
        return root

    def _read_events(self) -> None:
        documents = 0
        while True:
            event = self._loader.get_event()
            if isinstance(event, yaml.ScalarEvent):
                self._anchor(event.anchor, node := self._scalar(event))
                self._add(node)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._problems.fatal(
                        "pins.several-documents",
                        "a second document begins here",
                        _spot(event),
                        fix="remove the line ---, or put the rest into a file of its own",
                    )
            elif isinstance(event, yaml.StreamEndEvent):
                return

    def _open(self, event: Any) -> None:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        is_map = isinstance(event, yaml.MappingStartEvent)
        node: List | Map = Map(line, column) if is_map else List(line, column)
        if event.tag not in (None, "!", _PREFIX + ("map" if is_map else "seq")):
            self._foreign_tag(event.tag, node)
        if len(self._stack) >= MAX_DEPTH:
            self._too_deep(f"{line}:{column}")
        self._anchor(event.anchor, None)
        self._stack.append(_Open(node, event.anchor))

    def _close(self) -> None:
        closed = self._stack.pop()
        self._anchor(closed.anchor, closed.node)
        self._add(closed.node)

    def _anchor(self, name: str | None, node: Node | None) -> None:
        if name is not None:
            self._anchors[name] = node

    def _alias(self, event: Any) -> None:
        spot = _spot(event)
        if event.anchor not in self._anchors:
            self._problems.fatal(
                "pins.unknown-anchor", f"no anchor &{event.anchor} stands before this alias", spot
            )
        node = self._anchors[event.anchor]
        if node is None:
            self._problems.fatal(
                "pins.recursive-alias", f"*{event.anchor} stands inside of what it names", spot
            )
        self._aliased += node.size
        if self._aliased > MAX_ALIASED:
            self._problems.fatal(
                "pins.too-many-aliases",
                "the aliases of this file expand to too much",
                spot,
                why=f"at most {MAX_ALIASED} values may come from aliases",
            )
        self._add(node)

    def _add(self, node: Node) -> None:
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        top.node.size += node.size
        if isinstance(top.node, List):
            top.node.items.append(node)
        elif not top.waiting:
            top.key, top.waiting = self._key(node, top.node), True
        else:
            if top.key is not None:
                top.node.items[top.key.text] = (top.key, node)
            top.waiting = False

    def _key(self, node: Node, parent: Map) -> Scalar | None:
        """The node as a key of its mapping, or None (and a problem) if it cannot be one."""
        if not isinstance(node, Scalar):
            self._problems.add("pins.odd-key", "a key must be plain text", node)
        elif node.text == "<<" and node.kind == "text":
            self._problems.add(
                "pins.merge-key",
                "merge keys (<<) are not read",
                node,
                why="YAML 1.2 dropped them, and a diff of them hides what changes",
                fix="write the keys out; an alias for a whole value is fine",
            )
        elif node.text in parent.items:
            first = parent.items[node.text][0]
            self._problems.add(
                "pins.duplicate-key",
                f"`{node.text[:100]}` stands here twice",
                node,
                why=f"the first is in line {first.line}",
                fix="keep one of them",
            )
        else:
            return node
        return None

    def _scalar(self, event: Any) -> Scalar:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        tag = event.tag
        if tag is None and event.implicit[0]:
            tag = self._loader.resolve(yaml.ScalarNode, event.value, (True, False))
            kind = _KINDS.get(tag.removeprefix(_PREFIX), "text")
            return Scalar(line, column, event.value, kind)
        node = Scalar(line, column, event.value, "text")
        if tag not in (None, "!"):
            name = tag.removeprefix(_PREFIX)
            if name == tag or name not in _KINDS:
                self._foreign_tag(tag, node)
            node.kind = _KINDS.get(name, "text")
        return node

    def _foreign_tag(self, tag: str, node: Node) -> None:
        self._problems.add(
            "pins.foreign-tag",
            f"the tag {tag} is not known here",
            node,
            fix="leave the tag out",
        )

    def _too_deep(self, place: str) -> NoReturn:
        self._problems.fatal(
            "pins.too-deep",
            "this is nested too deeply",
            place,
            why=f"at most {MAX_DEPTH} levels are read",
        )

    def _syntax(self, error: yaml.YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is None:
            found = re.search(_UNPRINTABLE, self._text)
            place = _place(self._text[: found.start()]) if found else ""
            shown = f"{ord(found.group()):#04x}: " if found else ""
            self._problems.fatal(
                "pins.control-character",
                "a character has no place in a text file",
                place,
                why=f"{shown}{getattr(error, 'reason', error)}",
            )
        problem = str(getattr(error, "problem", None) or error)
        place = f"{mark.line + 1}:{mark.column + 1}"
        if "maximum nesting" in problem:  # libyaml reads ahead, and has a limit of its own
            self._too_deep(place)
        lines = self._text.split("\n")
        line = lines[mark.line] if mark.line < len(lines) else ""
        if line[mark.column : mark.column + 1] == "\t" or line[: mark.column].strip(" ") == "\t":
            self._problems.fatal(
                "pins.tab",
                "a tab stands where YAML wants spaces",
                place,
                fix="indent with spaces",
            )
        context, begin = getattr(error, "context", None), getattr(error, "context_mark", None)
        if context and begin is not None:
            problem += f" ({context} that begins in line {begin.line + 1})"
        self._problems.fatal("pins.syntax", "this is not YAML", place, why=problem)


def _spot(event: Any) -> str:
    return f"{event.start_mark.line + 1}:{event.start_mark.column + 1}"


def _place(before: str) -> str:
    """ "line:column" of what stands behind this text."""
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
