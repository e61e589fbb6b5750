"""Maintainer scripts: none is run, so each one has to be accounted for.

dpkg would run `preinst` and `postinst` of every package of a fresh root (a trigger runs
the `postinst` of the package that is interested in it). The recipe says of each package
that has one what became of it; a package that gains a script, or loses it, stops the
lock until somebody has read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.lock.model import Deb
from kiln.source import deb as package

INSTALLING = ("preinst", "postinst")
SHOWN = 4  # lines of an undeclared script that the error shows


def needed_scripts(debs: Sequence[tuple[Deb, Path]]) -> dict[str, dict[str, str]]:
    """Package name -> its scripts that dpkg would run, by name ("postinst")."""
    found = {}
    for deb, path in debs:
        scripts = package.Deb(path).scripts
        if wanted := {name: scripts[name] for name in INSTALLING if name in scripts}:
            found[deb.name] = wanted
    return dict(sorted(found.items()))


def check_scripts(
    debs: Sequence[tuple[Deb, Path]], declared: Mapping[str, str], where: str
) -> None:
    """Compare a closure with the recipe's `debian.scripts`; `where` is the recipe's path.

    Raises BadInput("lock.undeclared-script"), ("lock.stale-script"), or both, each with
    all packages.
    """
    found = needed_scripts(debs)
    problems: list[KilnError] = []
    if undeclared := sorted(found.keys() - declared.keys()):
        said = [
            f"{name} {script}: {line}"
            for name in undeclared
            for script, text in found[name].items()
            for line in _first_lines(text)
        ]
        problems.append(
            BadInput(
                "lock.undeclared-script",
                f"maintainer scripts that nobody has declared: {', '.join(undeclared)}",
                where=where,
                why="no script of a package is run in a build; they begin with\n" + "\n".join(said),
                fix='read each script and add its package to `debian.scripts`: "handled: how" '
                'or "needless: why"',
            )
        )
    if stale := sorted(declared.keys() - found.keys()):
        problems.append(
            BadInput(
                "lock.stale-script",
                f"declared scripts that the closure does not have: {', '.join(stale)}",
                where=where,
                why="the package left the closure, or has no script any more",
                fix="remove these lines from `debian.scripts`",
            )
        )
    raise_problems(problems)


def _first_lines(text: str) -> list[str]:
    """The lines with which a script begins to do something."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "set -"))][:SHOWN]
