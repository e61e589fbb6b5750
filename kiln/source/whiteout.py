"""Whiteouts: how a layer says that a file of a layer below it is gone.

(Image spec v1.1, layer.md: an empty file ".wh.<name>" hides <name>, a file or a folder with
all that is in it.) Only the patch layer has them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable

from kiln.source.entry import Entry, data_entry

PREFIX = ".wh."


def is_whiteout(path: str) -> bool:
    """Whether an entry of this path would hide something, in the eyes of an engine."""
    return posixpath.basename(path).startswith(PREFIX)


def hidden(path: str) -> str:
    """The path that a whiteout hides."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.removeprefix(PREFIX))


def whiteouts(
    gone: Collection[str],
    left: Collection[str],
    site: str,
    *,
    stale: Iterable[str] = (),
    origin: str = "kiln",
) -> list[Entry]:
    """The whiteouts for files that a series deletes.

    gone, left: the paths inside site-packages that are deleted, and that are there after the
    series. A folder that nothing is left of goes as a whole, or it would be imported as a
    namespace package. stale: bytecode that goes too, unless its folder does.
    """
    found: set[str] = set()
    folders = _folders(left)
    for path in gone:
        top = path
        while (parent := posixpath.dirname(top)) and parent not in folders:
            top = parent
        found.add(top)
    found.update(path for path in stale if posixpath.dirname(posixpath.dirname(path)) in folders)
    return [_entry(f"{site}/{path}", origin) for path in sorted(found)]


def _folders(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        while (path := posixpath.dirname(path)) and path not in found:
            found.add(path)
    return found


def _entry(path: str, origin: str) -> Entry:
    folder, name = posixpath.split(path)
    return data_entry(f"{folder}/{PREFIX}{name}", b"", origin=origin)
