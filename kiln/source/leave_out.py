"""Which files of a patch are left out of it: the globs under `leave_out` in patch.yaml.

In a glob "*" and "?" stand for anything but "/", and "**" for that too: "tests/**" is all
below tests/, "**/*.md" every such file. A whole path means itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from kiln.errors import BadInput, KilnError
from kiln.source.diff import LeftOut

_PART = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    """Whether one of the globs takes a path."""
    return lambda path: any(takes(glob, path) for glob in globs)


def takes(glob: str, path: str) -> bool:
    """Whether a glob takes a path."""
    return glob == path or _compiled(glob).fullmatch(path) is not None


@functools.cache
def _compiled(glob: str) -> re.Pattern[str]:
    parts = (_MEANING.get(part, re.escape(part)) for part in _PART.findall(glob))
    return re.compile("".join(parts), re.DOTALL)


def check_left_out(
    left_out: Iterable[LeftOut], globs: Sequence[str], names: Collection[str], where: str
) -> list[KilnError]:
    """What is wrong with leaving these out: "patch.leave-out-hides" (a file that the wheel
    has, or would have), "patch.leave-out-unused" (a glob that takes nothing)."""
    parts = list(left_out)
    errors: list[KilnError] = []
    for part in parts:
        for path in filter(None, (part.path, part.old)):
            inside = path.startswith("vllm/") and (part.new or path.endswith(".py"))
            if not inside and path not in names:
                continue
            errors.append(
                BadInput(
                    "patch.leave-out-hides",
                    f"{path} is left out of the patch, but it belongs to the wheel",
                    where=f"{where}:{part.line}",
                    why="only files that no wheel has (tests, docs) can be left out",
                    fix="make the glob under leave_out in patch.yaml narrower",
                )
            )
    errors += [
        BadInput(
            "patch.leave-out-unused",
            f"leave_out names {glob!r}, and the patch has no such file",
            where=where,
            why="a rule that does nothing hides what is really left out",
            fix="remove it from patch.yaml, or correct it",
        )
        for glob in globs
        if not any(takes(glob, path) for part in parts for path in (part.path, part.old))
    ]
    return errors
