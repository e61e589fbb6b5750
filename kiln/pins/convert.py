"""From nodes with positions to a model: every difference is a problem with its line.

The walk follows msgspec's own description of the model, so that fields, types and
forms are listed in one place only (kiln/pins/model.py). What the walk accepts, msgspec
converts.
"""

from __future__ import annotations

import functools
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

from kiln.errors import BadInput
from kiln.pins.forms import Form
from kiln.pins.problems import Collector, Placed, listed, near
from kiln.pins.yaml import List, Map, Node, Scalar

T = TypeVar("T")
_Number = TypeVar("_Number", int, float)

_INTEGER = re.compile("-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?")
_FOUND = {
    "int": "the number {}",
    "float": "the number {}",
    "bool": "{}, which YAML reads as true or false",
    "null": "nothing",
    "time": "{}, which YAML reads as a date",
    "text": "the text {!r}",
}


def convert(root: Node, model: type[T], problems: Collector) -> T:
    """The nodes as a model. Raises BadInput, or Problems with all that was noted."""
    walk = _Walk(problems)
    plain = walk.value(root, _described(model), "", root)  # type: ignore[arg-type]
    problems.finish()
    try:
        return msgspec.convert(plain, model)
    except msgspec.ValidationError as error:  # a rule of the model that the walk lacks
        raise BadInput("pins.schema", str(error), where=problems.shown) from error


@functools.cache
def _described(model: type) -> types.Type:
    """msgspec's description, which takes longer than a walk; a project has many patches."""
    return types.type_info(model)


class _Walk:
    """Turns nodes into builtins. Where it notes a problem, what it returns is of no use."""

    def __init__(self, problems: Collector) -> None:
        self.problems = problems

    def value(self, node: Node, kind: types.Type, path: str, spot: Placed) -> Any:
        """One value. path: its dotted name; spot: where to point if it is missing parts."""
        form: Form | None = None
        if isinstance(kind, types.Metadata):
            form, kind = (kind.extra or {}).get("form"), kind.type
        if isinstance(kind, types.UnionType):
            if _is_null(node) and kind.includes_none:
                return None
            (kind,) = (t for t in kind.types if not isinstance(t, types.NoneType))
            return self.value(node, kind, path, spot)
        if isinstance(kind, types.StrType):
            return self._text(node, form, path)
        if isinstance(kind, types.IntType):
            return self._integer(node, kind, path)
        if isinstance(kind, types.FloatType):
            return self._decimal(node, kind, path)
        if isinstance(kind, types.BoolType):
            return self._boolean(node, path)
        if isinstance(kind, types.LiteralType):
            return self._choice(node, kind, path)
        if isinstance(kind, types.VarTupleType | types.ListType):
            return self._list(node, kind, path, spot)
        if isinstance(kind, types.DictType):
            return self._dict(node, kind, path, spot)
        if isinstance(kind, types.StructType):
            return self._struct(node, kind, path, spot)
        raise TypeError(f"a model has a field of a type that files cannot hold: {kind}")

    # ---- leaves ------------------------------------------------------------------------

    def _text(self, node: Node, form: Form | None, path: str) -> str | None:
        if not isinstance(node, Scalar) or node.kind != "text":
            fix = ""
            if isinstance(node, Scalar):
                fix = f'quote it: "{node.text}"' if node.kind != "null" else "give it a value"
            self._wrong(node, "text", path, fix)
            return None
        self._form(node, form, path)
        return node.text

    def _form(self, node: Scalar, form: Form | None, path: str) -> None:
        if form is None or form.fits(node.text):
            return
        self.problems.add(
            "pins.form",
            f"{_named(path)} has not the form that it needs",
            node,
            why=f"found {_short(node.text)!r}; wanted {form.wanted}",
            fix=form.explain(node.text),
        )

    def _integer(self, node: Node, kind: types.IntType, path: str) -> int | None:
        if not isinstance(node, Scalar) or node.kind != "int":
            fix = ""
            if isinstance(node, Scalar) and _INTEGER.fullmatch(node.text):
                fix = f"leave out the quotes: {node.text}"
            self._wrong(node, "a whole number", path, fix)
            return None
        if not _INTEGER.fullmatch(node.text):
            fix = "write decimal digits, without a leading zero, '_' or ':'"
            self._wrong(node, "a whole number in plain digits", path, fix)
            return None
        return self._within(int(node.text), kind.ge, kind.le, node, path)

    def _decimal(self, node: Node, kind: types.FloatType, path: str) -> float | None:
        whole = isinstance(node, Scalar) and node.kind in ("int", "float")
        if not isinstance(node, Scalar) or not whole or not _DECIMAL.fullmatch(node.text):
            fix = "write decimal digits, as 0 or 0.8" if whole else ""
            self._wrong(node, "a number", path, fix)
            return None
        return self._within(float(node.text), kind.ge, kind.le, node, path)

    def _within(
        self, number: _Number, low: float | None, high: float | None, node: Node, path: str
    ) -> _Number:
        if (low is not None and number < low) or (high is not None and number > high):
            self.problems.add(
                "pins.out-of-range",
                f"{_named(path)} is out of range",
                node,
                why=f"found {number}; wanted {_range(low, high)}",
            )
        return number

    def _boolean(self, node: Node, path: str) -> bool | None:
        if isinstance(node, Scalar) and node.kind == "bool" and node.text in ("true", "false"):
            return node.text == "true"
        is_word = isinstance(node, Scalar) and node.kind == "bool"
        self._wrong(node, "true or false", path, "write true or false" if is_word else "")
        return None

    def _choice(self, node: Node, kind: types.LiteralType, path: str) -> Any:
        values = [str(value) for value in kind.values]
        if not isinstance(node, Scalar) or node.kind != "text":
            self._wrong(node, f"one of {listed(values)}", path)
            return None
        if node.text not in values:
            self.problems.add(
                "pins.form",
                f"{_named(path)} cannot be {_short(node.text)!r}",
                node,
                why=f"wanted one of {listed(values)}",
                fix=near(node.text, values),
            )
        return node.text

    # ---- collections -------------------------------------------------------------------

    def _list(
        self, node: Node, kind: types.VarTupleType | types.ListType, path: str, spot: Placed
    ) -> list[Any] | None:
        if not isinstance(node, List):
            fix = ""
            if _is_null(node):
                fix = "write [] for an empty list, or leave the key out"
            elif isinstance(node, Scalar):
                fix = f"write [{node.text}]"
            self._wrong(node, "a list", path, fix)
            return None
        self._enough(len(node.items), kind.min_length, path, spot)
        return [
            self.value(item, kind.item_type, f"{path}[{i}]", item)
            for i, item in enumerate(node.items)
        ]

    def _dict(
        self, node: Node, kind: types.DictType, path: str, spot: Placed
    ) -> dict[Any, Any] | None:
        if not isinstance(node, Map):
            fix = "write {} for an empty mapping, or leave the key out" if _is_null(node) else ""
            self._wrong(node, "a mapping (`key: value`)", path, fix)
            return None
        self._enough(len(node.items), kind.min_length, path, spot)
        plain = {}
        for text, (key, item) in node.items.items():
            name = f"{path}.{text}" if path else text
            self.value(key, kind.key_type, f"the key {name}", key)
            plain[text] = self.value(item, kind.value_type, name, _spot(key, item))
        return plain

    def _struct(
        self, node: Node, kind: types.StructType, path: str, spot: Placed
    ) -> dict[str, Any] | None:
        if not isinstance(node, Map):
            wanted = f"a mapping with {listed(f.encode_name for f in kind.fields)}"
            self._wrong(node, wanted, path)
            return None
        fields = {field.encode_name: field for field in kind.fields}
        inside = f" in {_named(path)}" if path else ""
        plain = {}
        for text, (key, item) in node.items.items():
            if text not in fields:
                self.problems.add(
                    "pins.unknown-key",
                    f"`{_short(text)}` is not known{inside}",
                    key,
                    why=f"known here: {listed(fields)}",
                    fix=near(text, fields),
                )
                continue
            name = f"{path}.{text}" if path else text
            plain[text] = self.value(item, fields[text].type, name, _spot(key, item))
        for name, field in fields.items():
            if field.required and name not in node.items:
                self.problems.add(
                    "pins.missing-key",
                    f"`{name}` is missing{inside}",
                    spot,
                    fix=f"add {name}: ...",
                )
        return plain

    def _enough(self, count: int, least: int | None, path: str, spot: Placed) -> None:
        if least is not None and count < least:
            self.problems.add(
                "pins.out-of-range",
                f"{_named(path)} holds too little",
                spot,
                why=f"found {count}, wanted at least {least}",
            )

    def _wrong(self, node: Node, wanted: str, path: str, fix: str = "") -> None:
        self.problems.add(
            "pins.wrong-type",
            f"{_named(path)} is not {wanted}",
            node,
            why=f"found {_found(node)}",
            fix=fix,
        )


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.kind == "null"


def _spot(key: Scalar, value: Node) -> Placed:
    return value if value.line == key.line else key


def _named(path: str) -> str:
    return f"`{_short(path)}`" if path else "the file"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _found(node: Node) -> str:
    if isinstance(node, Scalar):
        return _FOUND[node.kind].format(_short(node.text))
    return "a list" if isinstance(node, List) else "a mapping"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}"
