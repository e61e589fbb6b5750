"""The operators of a source's compiled libraries.

Libraries carry the schemas of their operators as text (kiln/drift/elf.py). They are large:
what was read out of one is kept in the store's table under the library's own sha256.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable

from kiln.canonical import sha256
from kiln.drift.elf import Library, read_library
from kiln.drift.remember import remembered
from kiln.drift.section import Entry, Section, UnreadableError
from kiln.drift.source import Source
from kiln.drift.tree import PACKAGE
from kiln.progress import Reporter
from kiln.store import Store


@runtime_checkable
class Libraries(Protocol):
    """What a source offers for its large files, on top of `kiln.drift.source.Source`. One
    that does not is read whole, and hashed here."""

    def sha256(self, path: str) -> str:
        """Of one file, in hex; a wheel knows it from RECORD without reading the file.
        Raises KeyError where there is none."""

    def open(self, path: str) -> BinaryIO:
        """One file as a stream (a wheel's is verified as it is read). Raises KeyError."""


def compiled_ops(
    sources: Sequence[Source], store: Store | None, reporter: Reporter
) -> list[Section | UnreadableError]:
    """For each source the operators of its libraries, by their names without namespaces,
    or why they cannot be read. Libraries that the store does not know are read side by
    side: unpacking them is most of the work. Raises what damaged files raise."""
    files = [
        [_File.of(source, path) for path in sorted(source.names()) if _is_library(path)]
        for source in sources
    ]
    wanted = {file.sha256: file for part in files for file in part}  # versions share some
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        read = list(pool.map(lambda file: file.library(store, reporter), wanted.values()))
    found = dict(zip(wanted, read, strict=True))
    return [_merged([found[file.sha256] for file in part]) for part in files]


def _is_library(path: str) -> bool:
    return path.startswith(f"{PACKAGE}/") and path.endswith(".so")


@dataclass(frozen=True)
class _File:
    """A library of a source."""

    source: Source
    path: str
    sha256: str
    opener: Callable[[], BinaryIO]

    @classmethod
    def of(cls, source: Source, path: str) -> _File:
        if isinstance(source, Libraries):
            return cls(source, path, source.sha256(path), functools.partial(source.open, path))
        data = source.read(path)
        return cls(source, path, sha256(data), functools.partial(io.BytesIO, data))

    def library(self, store: Store | None, reporter: Reporter) -> Library:
        """What is in it, from the store's table if it was read before."""

        def read() -> Library:
            with reporter.task(f"read {self.path}"), self.opener() as opened:
                return read_library(opened, f"{self.source.label}: {self.path}")

        if store is None:
            return read()
        return remembered(store, "drift:library", {"library": self.sha256}, Library, read)


def _merged(libraries: Sequence[Library]) -> Section | UnreadableError:
    if not libraries:
        return UnreadableError("there are no compiled libraries in it (a checkout?)")
    schemas: dict[str, set[str]] = {}
    platforms: set[str] = set()
    for library in libraries:
        for schema in library.schemas:
            name, bracket, rest = schema.partition("(")
            schemas.setdefault(name, set()).add(bracket + rest)
            platforms |= set(library.platform.split("+"))
    if not schemas:
        return UnreadableError(f"none of its {len(libraries)} libraries has a schema in it")
    if len(platforms) > 1:
        platforms -= {"cpu"}
    entries = {name: Entry(" | ".join(sorted(texts))) for name, texts in sorted(schemas.items())}
    return Section(entries, built_for="+".join(sorted(platforms)))
