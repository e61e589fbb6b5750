"""BYTECODE: the .pyc files of a wheel or a tree, compiled by the image's own Python.

They are hash-based (PEP 552), since a layer's times mean nothing, and name their source by
its final path. Unchecked ones are taken by Python as they are; checked ones only if the
source still has the hash in them, so that a mounted hot fix of vLLM is not ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kiln.canonical import Digest, dumps
from kiln.compile import inside
from kiln.compile.root import RootParams, materialise, root_parts
from kiln.compile.sandbox import Bind, Command, check, find_sandbox
from kiln.compile.script import made_entry
from kiln.graph.action import Context
from kiln.source.entry import Entry
from kiln.source.pycache import cache_path, cache_tag
from kiln.source.tree import read_tree, write_tree
from kiln.source.wheel import Install, Wheel

SECONDS = 3600.0
# PEP 552: bit 0, the pyc is hash-based; bit 1, the source is to be checked.
UNCHECKED, CHECKED = 0b01, 0b11
# Where Python imports from; a package's .py files elsewhere are data of other programs.
# A name that begins with a dot cannot be imported.
_IMPORTED = re.compile(r"(^|/)lib/python3[^/]*/([^/]+/)*[^/.][^/]*\.py\Z", re.DOTALL)
_SHOWN = 3  # files that a note names


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a bytecode action is told.

    kind: of the input "source". filename: of the wheel, or what a tree is, for people.
    install: where a wheel's files go; its interpreter compiles. checked: see above.
    """

    kind: Literal["wheel", "tree"]
    filename: str
    install: Install
    checked: bool
    root: RootParams


def sources(entries: Iterable[Entry], tag: str) -> list[Entry]:
    """The entries to compile: what Python imports and has no bytecode of its own yet."""
    found = list(entries)
    paths = {entry.path for entry in found}
    return [
        entry
        for entry in found
        if entry.kind == "file"
        and _IMPORTED.search(entry.path)
        and cache_path(entry.path, tag) not in paths
    ]


def run(context: Context) -> Mapping[str, Digest]:
    """Inputs "source" (wheel or tree), "root/..." (the image's Python; root.root_inputs);
    parameters `Params`; outputs "out": a tree of .pyc files at their final paths, "skipped":
    canonical JSON, source path -> why it has no bytecode."""
    params = msgspec.convert(dict(context.params), Params)
    tag = cache_tag(params.install.interpreter)
    todo = sources(_entries(context, params), tag)
    compiled, skipped = _compile(context, params, todo, tag) if todo else ([], {})
    _say(context, params.filename, len(todo), skipped)
    return {
        "out": write_tree(context.store.blobs, compiled),
        "skipped": context.store.blobs.put(dumps(skipped)),
    }


def _compile(
    context: Context, params: Params, todo: Sequence[Entry], tag: str
) -> tuple[list[Entry], dict[str, str]]:
    """The bytecode, and source path -> why it has none."""
    build = context.tmp / "build"
    _lay_out(todo, build)
    command = Command(
        argv=(
            # Without site: as few modules as can be. Not isolated (-I): that would ignore
            # the sandbox's PYTHONHASHSEED.
            *(params.install.interpreter, "-s", "-S", "-W", "ignore", "/build/inside.py"),
            str(len(os.sched_getaffinity(0))),
            str(CHECKED if params.checked else UNCHECKED),
        ),
        root=materialise(context.store, root_parts(context.inputs, context.params["root"])),
        binds=(Bind(build, "/build", writable=True),),
        seconds=SECONDS,
    )
    what = f"compiling {params.filename}"
    check(find_sandbox(context.store), command, context.tmp / "log", what, context.store)
    return _collect(todo, build / "out", tag)


def _entries(context: Context, params: Params) -> list[Entry]:
    path = context.path("source")
    if params.kind == "tree":
        return read_tree(path, params.filename)
    return Wheel(path, params.filename).entries(params.install)


def _lay_out(todo: Sequence[Entry], build: Path) -> None:
    """The sources by number, so that no name from a wheel becomes a path."""
    for folder in ("src", "out"):
        (build / folder).mkdir(parents=True)
    for number, entry in enumerate(todo):
        with (build / "src" / str(number)).open("wb") as out:
            for block in entry.blocks():
                out.write(block)
    names = b"".join(b"/" + entry.path.encode() + b"\0" for entry in todo)
    (build / "names").write_bytes(names)
    (build / "inside.py").write_bytes(Path(inside.__file__).read_bytes())


def _collect(todo: Sequence[Entry], out: Path, tag: str) -> tuple[list[Entry], dict[str, str]]:
    compiled: list[Entry] = []
    skipped: dict[str, str] = {}
    for number, entry in enumerate(todo):
        result, error = out / str(number), out / f"{number}.error"
        if error.is_file():
            skipped[entry.path] = error.read_text("utf-8")
        elif not result.is_file():
            skipped[entry.path] = "the compiler crashed"
        else:
            compiled.append(made_entry(cache_path(entry.path, tag), result, entry.origin))
    return compiled, skipped


def _say(context: Context, filename: str, total: int, skipped: Mapping[str, str]) -> None:
    if not skipped:
        return
    shown = [f"  /{path}: {why}" for path, why in sorted(skipped.items())[:_SHOWN]]
    if len(skipped) > _SHOWN:
        shown.append(f"  and {len(skipped) - _SHOWN} more")
    head = f"{filename}: {len(skipped)} of {total} files do not compile, and stay as they are"
    context.reporter.note("\n".join([head, *shown]))
