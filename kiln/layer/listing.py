"""The listing of a layer: what is in it, to name the first file that differs.

One canonical JSON array a line, sorted bytewise by path: [path, mode, content], where
mode is four octal digits and content is a file's sha256 (hex), "dir", or "-> target".
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kiln.canonical import dumps
from kiln.errors import Damaged


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One path of a layer."""

    path: str
    mode: str
    content: str


def format_listing(lines: Iterable[Line]) -> bytes:
    """The listing's bytes."""
    return b"".join(dumps([line.path, line.mode, line.content]) + b"\n" for line in lines)


def parse_listing(data: bytes) -> list[Line]:
    """The lines of a listing. Raises Damaged("layer.listing")."""
    try:
        return [msgspec.json.decode(line, type=Line) for line in data.splitlines()]
    except msgspec.DecodeError as error:
        raise Damaged(
            "layer.listing",
            "this blob is not a layer's listing",
            why=str(error),
            fix="run `kiln fsck`; the next build makes the layer again",
        ) from error
