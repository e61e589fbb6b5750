"""A series of 30 patches on the default pin's wheel, and another version of its files.

The other version is the same files with lines of their own, other words and other places,
so that every kind of verdict has to be found: a wheel without compiled libraries. Both are
made of the wheel that the store has; nothing is fetched.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.source.wheel import Wheel
from tests.bench import table
from tests.bench.bench import Bench
from tests.bench.stores import KILN, best, run
from tests.bench.table import Row
from tests.helpers.default_pin import copy_project
from tests.helpers.small import make_wheel

PATCHES = 30
SHARED = ("vllm/v1/worker/gpu_model_runner.py", "vllm/config/speculative.py",
          "vllm/engine/arg_utils.py")  # fmt: skip
MANIFEST = """\
title: a patch of the bench
why: drift is measured with it
origin: own
unproven: it is never built
versions:
  - {{range: "=={version}", file: 1.patch}}
"""


def drift(bench: Bench) -> None:
    """`kiln drift` of 30 patches, in 33 files, on another source; work waits, so it ends with 1."""
    files = _python_files(bench)
    touched = _touched(files)
    copy = bench.folder / "series"
    copy_project(copy)
    names = []
    for number in range(PATCHES):
        names.append(f"bench-{number}")
        folder = copy / "patches" / names[-1]
        folder.mkdir()
        version = bench.subject.pin.vllm.version.partition("+")[0]
        (folder / "patch.yaml").write_text(MANIFEST.format(version=version))
        (folder / "1.patch").write_text(patch_text(files, touched, number))
    pins = copy / "pins.yaml"
    head, _, rest = pins.read_text().partition("      - kiln-identity\n")
    listed = "".join(f"      - {name}\n" for name in names)
    pins.write_text(f"{head}      - kiln-identity\n{listed}{rest}")
    other = make_wheel(bench.folder, "vllm", "99.0", _other(files, touched))

    script = '"$0" drift --json -q -C "$1" --to "$2"; [ $? -eq 1 ]'  # work waits
    command: list[str | Path] = ["sh", "-c", script, KILN, copy, other]
    environment = {"KILN_STORE": str(bench.stores.ready)}
    ran = best(bench.repeats, lambda: run(command, environment))
    said = json.loads(ran.output)
    states = [patch["state"] for patch in said["patches"] if patch["id"] in names]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    bench.rows.append(
        Row("drift of 30 patches", "s", ran.seconds, None, table.DRIFT, ", ".join(counts))
    )


def _python_files(bench: Bench) -> dict[str, str]:
    """The Python files of the pin's wheel of vLLM."""
    name = next(name for name in bench.subject.wheels if name.startswith("vllm-"))
    blob = bench.subject.wheels[name]
    wheel = Wheel(bench.subject.store.blobs.path(blob.sha256), name)
    paths = [p for p in wheel.names() if p.startswith("vllm/") and p.endswith(".py")]
    return {path: wheel.read(path).decode() for path in paths}


def _touched(files: Mapping[str, str]) -> list[str]:
    """A file for each patch: among those of some length, evenly spread."""
    long = sorted(p for p, text in files.items() if len(text) > 8000 and p not in SHARED)
    return long[:: len(long) // PATCHES][:PATCHES]


def patch_text(files: Mapping[str, str], touched: Sequence[str], number: int) -> str:
    """A patch of three places in its own file, and of one in a file that ten patches share."""
    own, shared = touched[number], SHARED[number % len(SHARED)]
    text = files[own].splitlines(keepends=True)
    places = [len(text) * part // 4 for part in (1, 2, 3)]
    lines = files[shared].splitlines(keepends=True)
    apart = len(lines) // (PATCHES + 2)
    return _diff(own, text, places, number) + _diff(shared, lines, [apart * (number + 1)], number)


def _diff(path: str, lines: Sequence[str], places: Sequence[int], number: int) -> str:
    after = list(lines)
    for place in sorted(places, reverse=True):
        after.insert(place, f"# bench {number}\n")
    return "".join(difflib.unified_diff(lines, after, f"a/{path}", f"b/{path}"))


def _other(files: Mapping[str, str], touched: Sequence[str]) -> dict[str, str | bytes]:
    """The other version: of the touched files each has another fate."""
    found: dict[str, str | bytes] = {}
    for path, text in files.items():
        place, changed = path, text
        if path in touched or path in SHARED:
            fate = touched.index(path) % 4 if path in touched else 0
            lines = text.splitlines(keepends=True)
            if fate == 0:  # lines above
                changed = f"# another version\n{text}"
            elif fate == 1:  # the line before the middle place is another
                lines[len(lines) // 2 - 1] = "# other words\n"
                changed = "".join(lines)
            elif fate == 2:  # it moved
                place = path.replace("vllm/", "vllm/moved/", 1)
        found[place] = changed
    return found
