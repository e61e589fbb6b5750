"""Run a recipe's script in a root: what components and models have in common.

Inside, /build is the only place that can be written to:

    /build/src      what is to be built, unpacked
    /build/recipe   the recipe's folder: the script and what it reads
    /build/out      where the script leaves its result
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from kiln.compile.root import materialise, root_parts
from kiln.compile.sandbox import Bind, Command, check, find_sandbox
from kiln.errors import BadInput, JudgedBad
from kiln.graph.action import Context
from kiln.source.entry import Entry
from kiln.source.stream import open_slice
from kiln.source.tree import read_tree, unpack

SECONDS = 4 * 3600.0  # a kernel library may take hours; one that hangs has to end


def run_script(context: Context, sources: Iterable[Entry], script: str, what: str) -> Path:
    """Unpack `sources`, run `script`; the folder with what it left.

    The context has inputs "recipe" and "root/...", and the parameter "root". what: for
    people. Raises BadInput("recipe.no-script"), JudgedBad("compile.failed").
    """
    build = context.tmp / "build"
    out = build / "out"
    out.mkdir(parents=True)
    unpack(sources, build / "src")
    unpack(read_tree(context.path("recipe")), build / "recipe")
    if not (build / "recipe" / script).is_file():
        raise BadInput(
            "recipe.no-script",
            f"there is no {script} beside the recipe",
            where=what,
            fix="add the script, or correct `script`",
        )
    command = Command(
        argv=("/bin/sh", "-e", f"/build/recipe/{script}"),
        root=materialise(context.store, root_parts(context.inputs, context.params["root"])),
        binds=(Bind(build, "/build", writable=True),),
        cwd="/build/src",
        seconds=SECONDS,
    )
    check(find_sandbox(context.store), command, context.tmp / "log", what, context.store)
    return out


def files_below(folder: Path) -> list[Path]:
    """The plain files that foreign code left, sorted; nothing is followed.

    Raises JudgedBad("compile.odd-output") for links, pipes and the like.
    """
    found: list[Path] = []
    for directory, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                found.append(path)
            elif not stat.S_ISDIR(mode):
                raise JudgedBad(
                    "compile.odd-output",
                    f"the script left {path.relative_to(folder)}, which is no plain file",
                    fix="let the script copy the file itself",
                )
    return sorted(found)


def made_entry(path: str, file: Path, origin: str) -> Entry:
    """An entry, mode 0644, for a file that a command left."""
    size = file.stat().st_size
    return Entry(
        path, "file", 0o644, size, "", functools.partial(open_slice, file, 0, size), origin
    )


def missing(expect: Iterable[str], have: Iterable[str], what: str) -> list[JudgedBad]:
    """An error, JudgedBad("compile.missing-file"), for each expected file that is absent.

    An expectation that ends in "*" holds if a file begins so: compilers add tags.
    """
    names = list(have)
    absent = [
        path
        for path in expect
        if not any(n.startswith(path[:-1]) if path.endswith("*") else n == path for n in names)
    ]
    return [
        JudgedBad(
            "compile.missing-file",
            f"{what} has no {path}",
            why=f"the recipe expects it; there are {len(names)} files",
            fix="look why the script did not build it, or correct `expect`",
        )
        for path in absent
    ]
