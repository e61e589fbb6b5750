"""File entries: the one currency between sources (wheels, packages, trees) and layers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from kiln.errors import BadInput, raise_problems

Kind = Literal["file", "dir", "symlink"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or symbolic link, as it will stand in a layer or a root.

    path: canonical and relative, "usr/bin/python3": no leading slash, no "." or "..",
    no doubled or trailing slash. mode: permission bits. size: bytes (files). target: of
    a symlink. opener: opens a file's content. origin: what it came from, for errors.
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    opener: Callable[[], BinaryIO] | None = None
    origin: str = ""

    def open(self) -> BinaryIO:
        """The content of a file."""
        if self.opener is None:
            raise ValueError(f"{self.path} is a {self.kind} without content")
        return self.opener()


def data_entry(path: str, data: bytes, mode: int = 0o644, origin: str = "kiln") -> Entry:
    """A file whose content is at hand."""
    return Entry(path, "file", mode, len(data), "", lambda: io.BytesIO(data), origin)


def check_path(path: str, where: str) -> str:
    """The path itself if it is canonical; BadInput("source.odd-path") otherwise."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadInput(
            "source.odd-path",
            f"entry name {path!r} is not a plain relative path",
            where=where,
            why="a name like this can write outside the image or over a link",
            fix="do not use this file; report it to whoever publishes it",
        )
    return path


def merge(sources: Iterable[Iterable[Entry]]) -> list[Entry]:
    """All entries, sorted bytewise by path, each path once.

    Folders that several sources share are one. Files that several sources claim are
    fine while nothing differs but the origin's bytes are equal; otherwise an error
    (BadInput("source.path-clash")): which one wins is a decision of the recipe.
    """
    found: dict[str, Entry] = {}
    clashes: list[BadInput] = []
    for source in sources:
        for entry in source:
            old = found.get(entry.path)
            if old is None or (old.kind == entry.kind == "dir" and old.mode == entry.mode):
                found[entry.path] = entry
            elif not _same(old, entry):
                clashes.append(
                    BadInput(
                        "source.path-clash",
                        f"two sources claim /{entry.path} with different content",
                        where=entry.origin,
                        why=f"the other is {old.origin}",
                        fix="name the winner in the recipe, under `winners`",
                    )
                )
    raise_problems(clashes)
    return sorted(found.values(), key=lambda e: e.path.encode())


def _same(a: Entry, b: Entry) -> bool:
    if (a.kind, a.mode, a.size, a.target) != (b.kind, b.mode, b.size, b.target):
        return False
    if a.kind != "file":
        return True
    with a.open() as one, b.open() as two:
        return one.read() == two.read()
