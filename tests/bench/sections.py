"""The sections: each measures one kind of work and adds its rows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kiln.errors import CannotHere
from kiln.pins.patch import read_series
from kiln.store import Store
from tests.bench import table
from tests.bench.bench import Bench
from tests.bench.drift import drift
from tests.bench.stores import KILN, ROOT, Built, best, of_layers, run
from tests.bench.table import Row
from tests.helpers.default_pin import copy_project

MB = 1e6


# ---- nothing changed -----------------------------------------------------------------------


def unchanged(bench: Bench) -> None:
    """`kiln image` with nothing changed, against `docker build` with all steps cached."""
    if not Store(bench.stores.ready).actions.evidence(_manifest(bench), "default"):
        bench.not_run.append(
            "unchanged: the store has no evidence for the image yet; run `make image` first"
        )
        return
    environment = {"KILN_STORE": str(bench.stores.ready)}
    docker = None
    if comparison := bench.docker_for("unchanged, docker"):
        comparison.whole(bytecode=False)
        docker = best(bench.repeats, lambda: comparison.build(bytecode=False)).seconds
    commands: Mapping[str, list[str | Path]] = {
        "`scripts/image`": [ROOT / "scripts" / "image", "--locked"],
        "`kiln image`": [KILN, "image", "-C", ROOT, "--locked"],
    }
    for shown, command in commands.items():
        ran = best(bench.repeats, functools.partial(run, command, environment))
        bench.rows.append(
            Row(f"nothing changed: {shown}", "s", ran.seconds, docker, table.UNCHANGED)
        )


def _manifest(bench: Bench) -> str:
    return bench.subject.outputs.manifest.sha256


# ---- one patched file ----------------------------------------------------------------------


def patch(bench: Bench) -> None:
    """One line of a patched Python file, to a new digest, and to the registry."""
    copy = bench.folder / "copy"
    copy_project(copy)
    series = read_series(bench.subject.project, bench.subject.pin.patches, _version(bench))
    diff = copy / series[-1].file
    text = diff.read_text()
    target, line = comment_line(text)
    before = set(_blobs(bench, bench.stores.build(bench.stores.ready).data))
    registry = bench.registry_for("patch, push")
    if registry:
        registry.push(bench.subject.store, f"sha256:{_manifest(bench)}", "kiln")

    builds: list[tuple[float, float | None, int]] = []
    for number in range(bench.repeats):
        diff.write_text(text.replace(f"+{line}\n", f"+{line} (edit {number})\n", 1))
        built = bench.stores.build(bench.stores.ready, copy, locked=False)
        blobs = _blobs(bench, built.data)
        size = sum(size for blob, size in blobs.items() if blob not in before)
        digest = str(built.data["digest"])
        pushed = registry.push(bench.subject.store, digest, "kiln") if registry else None
        builds.append((built.ran.seconds, pushed, size))
    seconds, pushed, _ = min(builds, key=lambda one: one[0] + (one[1] or 0))
    size = max(size for _, _, size in builds)

    docker = _docker_patch(bench, target, line)
    to_digest, to_registry, sent = docker or (None, None, None)
    work = "one patched Python file"
    bench.rows += [
        Row(f"{work}: to a new digest", "s", seconds, to_digest, table.PATCH_SECONDS),
        Row(f"{work}: bytes to push", "MB", size / MB, sent, table.PATCH_BYTES),
    ]
    if pushed is not None:
        bench.rows.append(Row(f"{work}: pushed", "s", seconds + pushed, to_registry))


def _version(bench: Bench) -> str:
    return bench.subject.pin.vllm.version


def comment_line(diff: str) -> tuple[str, str]:
    """The file and the text of the first comment that a diff adds to a Python file."""
    target = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            target = line.removeprefix("+++ b/")
        elif target.endswith(".py") and re.match(r"\+\s*# ", line):
            return target, line[1:]
    raise CannotHere("bench.no-comment", "the last patch of the series adds no comment")


def _blobs(bench: Bench, built: Mapping[str, Any]) -> dict[str, int]:
    """Digest -> size of all that the registry must have for an image."""
    layers = {layer["digest"]["sha256"]: layer["digest"]["size"] for layer in built["layers"]}
    documents = [str(built[name]).removeprefix("sha256:") for name in ("digest", "config")]
    blobs = bench.subject.store.blobs
    return {**layers, **{sha: blobs.path(sha).stat().st_size for sha in documents}}


def _docker_patch(bench: Bench, target: str, line: str) -> tuple[float, float, float] | None:
    """Seconds to an image, seconds until it is pushed, MB pushed; the best of some edits."""
    comparison = bench.docker_for("patch, docker")
    if comparison is None:
        return None
    comparison.whole(bytecode=False)
    before = set(comparison.registry.blobs("docker", "plain"))
    (path,) = (comparison.context / "patched").glob(f"**/{target}")
    text = path.read_text()
    found = []
    for number in range(bench.repeats):
        path.write_text(text.replace(f"{line}\n", f"{line} (edit {number})\n", 1))
        build, push = comparison.build(bytecode=False), comparison.push(bytecode=False)
        blobs = comparison.registry.blobs("docker", "plain")
        size = sum(size for blob, size in blobs.items() if blob not in before)
        found.append((build.seconds, build.seconds + push.seconds, size / MB))
    path.write_text(text)
    return min(found, key=lambda one: one[1])


# ---- layers --------------------------------------------------------------------------------

# What --quick makes: enough to see that the bench works, and nothing to measure.
SMALL = ("layer:patches", "layer:arctic-inference", "layer:configuration")


def layers(bench: Bench) -> None:
    """Wheels and trees on disk to all layers and a manifest; nothing else is to be done."""

    count, runs = len(bench.subject.outputs.layers) + 1, []
    for _ in range(1 if bench.quick else 3):
        built = _build_fresh(bench, lambda node: not of_layers(node))
        if not bench.quick and built.data["actions_run"] != count:
            raise CannotHere(
                "bench.not-ready",
                f"{built.data['actions_run']} actions ran, where {count} were to be measured",
                why="results that a layer is made of are gone from the store",
                fix="`kiln fsck` forgets them, and `kiln build` makes them again",
            )
        runs.append(built.ran)
    ran, size = min(runs, key=lambda one: one.seconds), bench.subject.tar_size / MB
    detail = f"{size:.0f} MB of tar in {ran.seconds:.1f} s"
    work = "wheels on disk to a complete image"
    peak = max(one.peak for one in runs) / MB
    bench.rows += [
        Row(work, "MB/s", size / ran.seconds, budget=table.LAYERS_SPEED, detail=detail),
        Row(f"{work}: peak of memory", "MB", peak, budget=table.LAYERS_MEMORY),
    ]


def _build_fresh(
    bench: Bench, keep: Callable[[str], bool], then: Callable[[Path], None] | None = None
) -> Built:
    """A build in a store with the kept results; `then` sees that store before it goes."""

    def quick(node: str) -> bool:
        return keep(node) or (node not in SMALL and not node.startswith("whole:"))

    with bench.stores.fresh(quick if bench.quick else keep) as store:
        built = bench.stores.build(store)
        if then is not None:
            then(store)
        return built


# ---- the whole -----------------------------------------------------------------------------


def whole(bench: Bench) -> None:
    """All locked files on disk to a pushed image, against Docker's with bytecode."""
    kiln = {
        "from an emptied action table": lambda node: False,
        "with bytecode and components cached": lambda node: node.startswith(
            ("bytecode:", "component:")
        ),
    }
    made: dict[str, tuple[float, float | None]] = {}
    for title, keep in kiln.items():
        bench.say(f"whole: kiln {title}")
        made[title] = _kiln_whole(bench, keep, f"kiln-{len(made)}")
    docker: dict[bool, tuple[float, float]] = {}
    if comparison := bench.docker_for("whole, docker"):
        for bytecode in (False, True):
            bench.say(f"whole: docker, {'with' if bytecode else 'without'} bytecode")
            docker[bytecode] = comparison.whole(bytecode)
    against = sum(docker[True]) if docker else None
    for title, (build, push) in made.items():
        detail = f"build {build:.1f} s, " + (f"push {push:.1f} s" if push else "not pushed")
        total = build + (push or 0)
        bench.rows.append(Row(f"whole: {title}", "s", total, against, table.WHOLE, detail))
    for bytecode, (build, push) in docker.items():
        kind = "with" if bytecode else "without"
        detail = f"build {build:.1f} s, push {push:.1f} s"
        bench.rows.append(
            Row(f"whole: `docker build` {kind} bytecode", "s", None, build + push, None, detail)
        )


def _kiln_whole(
    bench: Bench, keep: Callable[[str], bool], repository: str
) -> tuple[float, float | None]:
    """Seconds of build and push; None where there is no registry."""
    registry = bench.registry_for("whole, push of Kiln's image")
    pushed: list[float] = []

    def push(folder: Path) -> None:
        if registry:
            manifest = f"sha256:{_manifest(bench)}"
            pushed.append(registry.push(Store(folder), manifest, repository))

    built = _build_fresh(bench, keep, push)
    return built.ran.seconds, pushed[0] if pushed else None


SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "unchanged": unchanged,
    "patch": patch,
    "layers": layers,
    "whole": whole,
    "drift": drift,
}
