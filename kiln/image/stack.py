"""What layers may do to the layers below them: next to nothing.

Within a layer, sources that claim one path are an error (kiln.source.entry.merge). Over
layers an engine would let the upper one win in silence; here only the patch layer may
replace a file, and nobody may put a folder over a link or write through one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.layer.listing import Line

# The one layer whose purpose is to replace files of another.
PATCHES = "patches"
SHOWN = 20  # problems that are reported; thousands help nobody


def check_stack(layers: Mapping[str, Iterable[Line]]) -> None:
    """Check the listings of an image's layers, lowest first.

    Raises BadInput "image.path-clash" (two layers, one file), "image.over-link" (a folder
    over a link), "image.through-link" (a path below a link), "image.folder-mode".
    """
    seen: dict[str, tuple[str, Line]] = {}
    links: set[str] = set()
    problems: list[KilnError] = []
    for name, lines in layers.items():
        for line in lines:
            old = seen.get(line.path)
            if old is not None and (problem := _clash(name, line, *old)) is not None:
                problems.append(problem)
            elif parent := _link_above(line.path, links):
                problems.append(
                    BadInput(
                        "image.through-link",
                        f"layer {name} has /{line.path}, below the link /{parent}",
                        fix="let the recipe put it where the link points",
                    )
                )
            seen[line.path] = (name, line)
            if line.content.startswith("-> "):
                links.add(line.path)
    raise_problems(problems[:SHOWN])


def _clash(name: str, new: Line, below: str, old: Line) -> BadInput | None:
    if new == old:
        return None
    if new.content == "dir" and old.content.startswith("-> "):
        return BadInput(
            "image.over-link",
            f"layer {name} puts the folder /{new.path} over a link of layer {below}",
            why="everything that is reached through the link would be gone",
            fix="let the recipe put these files where the link points",
        )
    if new.content == old.content == "dir":
        return BadInput(
            "image.folder-mode",
            f"layer {name} gives the folder /{new.path} mode {new.mode}, layer {below} {old.mode}",
        )
    if name == PATCHES:
        return None
    return BadInput(
        "image.path-clash",
        f"layers {below} and {name} both have /{new.path}, with different content",
        why="an engine would let the upper one win in silence",
        fix="put both into one layer of the recipe, and name the winner under `winners`",
    )


def _link_above(path: str, links: set[str]) -> str:
    parent = path.rpartition("/")[0]
    while parent:
        if parent in links:
            return parent
        parent = parent.rpartition("/")[0]
    return ""
