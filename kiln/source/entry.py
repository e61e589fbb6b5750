"""File entries: the one currency between sources (wheels, packages, trees) and layers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from kiln.canonical import sha256
from kiln.errors import BadInput, raise_problems
from kiln.source.stream import CHUNK

UNDECLARED = 0o755  # mode of folders that nobody declared
Kind = Literal["file", "dir", "symlink"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or symbolic link, as it will stand in a layer or a root.

    path: canonical and relative, "usr/bin/python3": no leading slash, no "." or "..",
    no doubled or trailing slash. mode: permission bits. size: bytes (files). target: of
    a symlink. opener: opens a file's content. origin: what it came from, for errors.
    sha256: hex, where the content is known to have it (the opener itself refuses other
    bytes); "" where nobody has hashed it yet.
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    opener: Callable[[], BinaryIO] | None = None
    origin: str = ""
    sha256: str = ""

    def open(self) -> BinaryIO:
        """The content of a file."""
        if self.opener is None:
            raise ValueError(f"{self.path} is a {self.kind} without content")
        return self.opener()

    def blocks(self) -> Iterator[bytes]:
        """The content of a file, in blocks of 1 MiB at most.

        Raises BadInput("source.size-mismatch") if it is not as long as `size` says.
        """
        left = self.size
        with self.open() as source:
            while data := source.read(min(CHUNK, left) or 1):
                left -= len(data)
                if left < 0:
                    break
                yield data
        if left:
            raise BadInput(
                "source.size-mismatch",
                f"the content of /{self.path} is not the {self.size} bytes that were declared",
                where=self.origin,
                why="it is longer" if left < 0 else f"{left} bytes are missing",
                fix="the source is damaged or forged; fetch it again",
            )


def data_entry(path: str, data: bytes, mode: int = 0o644, origin: str = "kiln") -> Entry:
    """A file whose content is at hand."""
    return Entry(path, "file", mode, len(data), "", lambda: io.BytesIO(data), origin, sha256(data))


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

    Folders that several sources share are one; mode 0755, which a folder has where
    nobody declared it, gives way to another. Files that several sources claim are
    fine while nothing differs but the origin; otherwise an error
    (BadInput("source.path-clash")): which one wins is a decision of the recipe.
    What lies below a file or a link is refused (BadInput("source.below-no-folder")):
    whoever unpacks it would write through the link.
    """
    found: dict[str, Entry] = {}
    problems: list[BadInput] = []
    for source in sources:
        for entry in source:
            old = found.get(entry.path)
            if old is None or (old.kind == entry.kind == "dir" and old.mode == UNDECLARED):
                found[entry.path] = entry
            elif entry.kind == old.kind == "dir" and entry.mode == UNDECLARED:
                continue
            elif not _same(old, entry):
                problems.append(
                    BadInput(
                        "source.path-clash",
                        f"two sources claim /{entry.path} with different content",
                        where=entry.origin,
                        why=f"the other is {old.origin}: {_describe(old)}, not {_describe(entry)}",
                        fix="name the winner in the recipe, under `winners`",
                    )
                )
    problems += _below_no_folder(found)
    raise_problems(problems)
    return sorted(found.values(), key=lambda e: e.path.encode())


def complete(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted entries and the folders above them that none declares, in order.

    With the folders declared, the same files are the same bytes however much of them was
    spelled out.
    """
    done = list(entries)
    known = {entry.path for entry in done if entry.kind == "dir"} | {""}
    for entry in tuple(done):
        parent = entry.path.rpartition("/")[0]
        while parent not in known:
            known.add(parent)
            done.append(Entry(parent, "dir", UNDECLARED, origin=entry.origin))
            parent = parent.rpartition("/")[0]
    return sorted(done, key=lambda e: e.path.encode())


def _below_no_folder(found: dict[str, Entry]) -> list[BadInput]:
    problems, sound = [], {""}
    for entry in found.values():
        parent = entry.path.rpartition("/")[0]
        while parent not in sound:
            above = found.get(parent)
            if above is not None and above.kind != "dir":
                problems.append(
                    BadInput(
                        "source.below-no-folder",
                        f"/{entry.path} lies below /{parent}, which is a {above.kind}",
                        where=entry.origin,
                        why=f"/{parent} comes from {above.origin}",
                        fix="one of the two has to go, or to move",
                    )
                )
                break
            sound.add(parent)
            parent = parent.rpartition("/")[0]
    return problems


def _describe(entry: Entry) -> str:
    content = {"file": f", {entry.size} bytes", "symlink": f" to {entry.target}", "dir": ""}
    return f"{entry.kind} {entry.mode:04o}{content[entry.kind]}"


def _same(a: Entry, b: Entry) -> bool:
    if (a.kind, a.size, a.target) != (b.kind, b.size, b.target):
        return False
    if a.kind == "symlink":
        return True
    if a.mode != b.mode:
        return False
    if a.kind == "dir" or (a.sha256 and a.sha256 == b.sha256):
        return True
    with a.open() as one, b.open() as two:
        while data := one.read(CHUNK):
            if data != two.read(len(data)):
                return False
        return not two.read(1)
