"""What layers may do to the layers below them: next to nothing.

Within a layer, sources that claim one path are an error (kiln.source.entry.merge). Over
layers an engine would let the upper one win in silence; here only the patch layer may
replace a file or hide one (by a whiteout: kiln.source.whiteout), and nobody may put a folder
over a link or write through one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.layer.listing import Line
from kiln.source.whiteout import hidden, is_whiteout

# The one layer whose purpose is to replace files of another.
PATCHES = "patches"
SHOWN = 20  # problems that are reported; thousands help nobody


def check_stack(layers: Mapping[str, Iterable[Line]]) -> None:
    """Check the listings of an image's layers, lowest first.

    Raises BadInput "image.path-clash" (two layers, one file), "image.over-link" (a folder
    over a link), "image.other-kind", "image.folder-mode", "image.below-no-folder" (a path
    below a link or a file), "image.whiteout" (a layer that may not hide files, or a whiteout
    of nothing).
    """
    seen: dict[str, tuple[str, Line]] = {}
    problems: list[KilnError] = []
    for name, every in layers.items():
        lines = list(every)
        # First, for they speak of the layers below only.
        for line in (line for line in lines if is_whiteout(line.path)):
            problems += _hide(name, line, seen)
        for line in (line for line in lines if not is_whiteout(line.path)):
            old = seen.get(line.path)
            if old is not None and (problem := _clash(name, line, *old)) is not None:
                problems.append(problem)
            elif (above := _no_folder_above(line.path, seen)) is not None:
                problems.append(
                    BadInput(
                        "image.below-no-folder",
                        f"layer {name} has /{line.path}, and /{above.path} is {_kind(above)}",
                        why="it would be written through the link, or in place of the file",
                        fix="let the recipe put it where the link points",
                    )
                )
            seen[line.path] = (name, line)
    raise_problems(problems[:SHOWN])


def _hide(name: str, line: Line, seen: dict[str, tuple[str, Line]]) -> list[BadInput]:
    """Take out what a whiteout hides."""
    path = hidden(line.path)
    # Of a module without bytecode (it does not compile) there is none to hide.
    lacks = path not in seen and "/__pycache__/" not in path
    if name != PATCHES or lacks or is_whiteout(path):
        why = "there is nothing of that name below" if name == PATCHES else "only patches may"
        what = f"layer {name} hides /{path}"
        return [BadInput("image.whiteout", what, where=f"/{line.path}", why=why)]
    if path in seen and seen.pop(path)[1].content == "dir":
        for below in [other for other in seen if other.startswith(f"{path}/")]:
            del seen[below]
    return []


def _clash(name: str, new: Line, below: str, old: Line) -> BadInput | None:
    if new == old:
        return None
    kinds = (_kind(old), _kind(new))
    if kinds == ("a link", "a folder"):
        return BadInput(
            "image.over-link",
            f"layer {name} puts the folder /{new.path} over a link of layer {below}",
            why="everything that is reached through the link would be gone",
            fix="let the recipe put these files where the link points",
        )
    if name == PATCHES and kinds[0] == "a file" and kinds[1] != "a folder":
        return None
    if kinds[0] != kinds[1]:
        return BadInput(
            "image.other-kind",
            f"/{new.path} is {kinds[1]} in layer {name}, and {kinds[0]} in layer {below}",
        )
    if kinds[0] == "a folder":
        return BadInput(
            "image.folder-mode",
            f"layer {name} gives the folder /{new.path} mode {new.mode}, layer {below} {old.mode}",
        )
    return BadInput(
        "image.path-clash",
        f"layers {below} and {name} both have /{new.path}, with different content",
        why="an engine would let the upper one win in silence",
        fix="put both into one layer of the recipe, and name the winner under `winners`",
    )


def _kind(line: Line) -> str:
    if line.content == "dir":
        return "a folder"
    return "a link" if line.content.startswith("-> ") else "a file"


def _no_folder_above(path: str, seen: Mapping[str, tuple[str, Line]]) -> Line | None:
    """The nearest entry above a path that is no folder."""
    parent = path.rpartition("/")[0]
    while parent:
        if parent in seen and seen[parent][1].content != "dir":
            return seen[parent][1]
        parent = parent.rpartition("/")[0]
    return None
