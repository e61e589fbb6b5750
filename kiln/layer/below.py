"""What the layers below hold, so that a new layer does not break it.

A layer that carries a folder where a lower one has a link replaces the link when it is
unpacked, and everything behind it is gone; a folder that is carried again with another
mode loses its sticky bit. So paths are led through the links below, and folders keep
the modes they have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kiln.errors import BadInput
from kiln.source.entry import UNDECLARED, Entry

_MAX_LINKS = 40  # as Linux's own limit, path_resolution(7)


class Below:
    """The entries of all lower layers; where they repeat a path, the last one counts."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._there = {entry.path: entry for entry in entries}
        self.modes = {e.path: e.mode for e in self._there.values() if e.kind == "dir"}

    def place(self, entry: Entry) -> Entry:
        """The entry where it has to go: no folder over a link or a file, nothing else
        over a folder or over a link to one.

        Raises BadInput("layer.link-loop", "layer.other-kind", "layer.folder-mode").
        """
        if not self._there:
            return entry
        path = self._resolve(entry, into=entry.kind == "dir")
        there = self._there.get(path)
        if there is None:
            return entry if path == entry.path else dataclasses.replace(entry, path=path)
        if entry.kind != "dir":
            if there.kind == "dir" or self._hides_a_folder(entry, there):
                raise _other_kind(entry, there)
            return dataclasses.replace(entry, path=path)
        if there.kind != "dir":
            raise _other_kind(entry, there)
        if entry.mode not in (there.mode, UNDECLARED) and path == entry.path:
            raise BadInput(
                "layer.folder-mode",
                f"the folder /{path} has mode {entry.mode:04o} here, {there.mode:04o} below",
                where=entry.origin,
                why=f"it comes from {there.origin}; carrying it again would change it",
                fix="declare the same mode in both layers",
            )
        return dataclasses.replace(entry, path=path, mode=there.mode)

    def _hides_a_folder(self, entry: Entry, there: Entry) -> bool:
        """Whether a link to a folder below would be lost."""
        if there.kind != "symlink" or (entry.kind, entry.target) == ("symlink", there.target):
            return False
        try:
            return self._resolve(there, into=True) in self.modes
        except BadInput:
            return False  # a link that leads nowhere hides nothing

    def _resolve(self, entry: Entry, into: bool) -> str:
        """The path with every link on the way followed; into: the last one as well."""
        todo, done, hops = entry.path.split("/")[::-1], list[str](), 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]  # above / is /
                continue
            there = self._there.get("/".join([*done, part]))
            if there is None or there.kind == "dir" or not (todo or into):
                done.append(part)
                continue
            if there.kind == "file":
                if todo:
                    raise _other_kind(entry, there)
                done.append(part)
                continue
            if (hops := hops + 1) > _MAX_LINKS:
                raise BadInput(
                    "layer.link-loop",
                    f"/{entry.path} leads through links in a circle",
                    where=entry.origin,
                    why=f"one of them is /{there.path} -> {there.target}",
                    fix="correct the links in the layer below",
                )
            if there.target.startswith("/"):
                done = []
            todo += there.target.split("/")[::-1]
        return "/".join(done)


def _other_kind(entry: Entry, there: Entry) -> BadInput:
    return BadInput(
        "layer.other-kind",
        f"/{entry.path}, a {entry.kind}, would hide /{there.path}, a {there.kind} below",
        where=entry.origin,
        why=f"the one below comes from {there.origin}",
        fix="one of the two has to go, or to move",
    )
