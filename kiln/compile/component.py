"""COMPONENT: a wheel built from a locked sdist, in a locked root, by the recipe's script.

The result is the same on every machine: one path (/build), one environment, locked
compilers, and a repacked wheel. That the script itself is reproducible is tested by
building twice (tests/e2e), not hoped for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kiln.canonical import Digest
from kiln.compile.repack import repack
from kiln.compile.root import RootParams
from kiln.compile.script import files_below, missing, run_script
from kiln.compile.sdist import read_sdist
from kiln.errors import JudgedBad, KilnError, raise_problems
from kiln.graph.action import Context
from kiln.source.wheel import Wheel


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a component's action is told.

    name, version: what the wheel must call itself (name normalised). sdist: file name.
    script: in the recipe's folder. expect: paths that the wheel must hold.
    """

    name: str
    version: str
    sdist: str
    script: str
    root: RootParams
    expect: tuple[str, ...] = ()


def built_name(name: str, version: str) -> str:
    """A file name for a built wheel, where one is asked for (as in WheelPart).

    Built wheels are known by hash, before anybody can know their tags: those of this
    name say nothing.
    """
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def run(context: Context) -> Mapping[str, Digest]:
    """Inputs "sdist", "recipe" (a tree: the files beside the recipe), "root/..."
    (root.root_inputs);
    parameters `Params`; output "out": the wheel."""
    params = msgspec.convert(dict(context.params), Params)
    what = f"the build of {params.name} {params.version}"
    sources = read_sdist(context.path("sdist"), params.sdist, context.tmp)
    out = run_script(context, sources, params.script, what)
    wheel = _the_wheel(out, what)
    problems: list[KilnError] = []
    if (wheel.name, wheel.version) != (params.name, params.version):
        problems.append(
            JudgedBad(
                "compile.other-wheel",
                f"{what} made {wheel.name} {wheel.version}",
                why="its version must come from the lock, never from the day or a checkout",
                fix="set name and version in the script",
            )
        )
    problems += missing(params.expect, wheel.names(), wheel.filename)
    problems += _leaks(wheel, context)
    raise_problems(problems)
    context.reporter.note(f"{what}: {wheel.filename}")
    with context.store.blobs.writer() as blob, (context.tmp / "wheel").open("w+b") as file:
        repack(wheel, file)
        file.seek(0)
        while block := file.read(1 << 20):
            blob.write(block)
    return {"out": blob.digest}


def _the_wheel(out: Path, what: str) -> Wheel:
    files = files_below(out)
    if len(files) != 1 or files[0].suffix != ".whl":
        found = ", ".join(str(file.relative_to(out)) for file in files[:5]) or "nothing"
        raise JudgedBad(
            "compile.no-wheel",
            f"{what} has to leave exactly one wheel in /build/out",
            why=f"it left {found}",
            fix="correct the script",
        )
    return Wheel(files[0], files[0].name)


def _leaks(wheel: Wheel, context: Context) -> list[JudgedBad]:
    """Paths of this machine in the wheel: inside, only /proc tells them."""
    store = os.fsencode(context.store.root) + b"/"
    places = (store + b"tmp/", store + b"roots/")
    return [
        JudgedBad(
            "compile.leak",
            f"{name} of {wheel.filename} holds a path of this machine",
            why="another machine would build other bytes",
            fix="find what in the build reads /proc/self/mountinfo or /proc/self/fd",
        )
        for name in wheel.names()
        if any(place in wheel.read(name) for place in places)
    ]
