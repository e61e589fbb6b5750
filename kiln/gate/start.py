"""Start a built image the way a preset says, with a gates' model, and judge it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere, JudgedBad
from kiln.gate.model import Evidence, Expected, LaunchPlan
from kiln.gate.run import Gates
from kiln.graph.build import Fetcher, build
from kiln.image.prepare import LockFetcher
from kiln.image.read import Image
from kiln.image.roots import model_graph
from kiln.image.target import Target, read_target
from kiln.image.tools import BUBBLEWRAP, RUNTIMES, ensure_tool
from kiln.pins.load import Project
from kiln.pins.model import DEFAULT_LAUNCH, Preset
from kiln.progress import Reporter
from kiln.run.runner import Launch, Runner, new_nonce
from kiln.source.tree import read_tree, unpack
from kiln.store import Store

ENDPOINT = "endpoint="


def start_and_judge(
    project: Project,
    found: Target,
    preset: Preset,
    expected: Expected,
    runner: str,
    served: str,
    store: Store,
    reporter: Reporter,
) -> Evidence:
    """Run the gates on a fresh start for each launch, or on a given server (runner
    "endpoint=URL"), which is judged as the first of them.

    served: which model of an endpoint to ask, "" where it has one. An endpoint's key comes
    from the environment (KILN_ENDPOINT_TOKEN, sent as a bearer token and never shown).

    Raises BadInput("gate.unknown-runner"), CannotHere where this machine cannot start it,
    JudgedBad where it does not start.
    """
    image = read_target(found, store)
    fetcher = LockFetcher(project, found.lock, store, reporter)
    starter: Runner
    if runner.startswith(ENDPOINT):
        starter = _endpoint(runner.removeprefix(ENDPOINT), served)
        models = {"": Path(preset.model)}  # whatever the endpoint serves; nothing is mounted
    else:
        starter = _runner(project, found, runner, store, fetcher, reporter)
        resolved = found.lock.resolved
        ensure_tool(BUBBLEWRAP, project, resolved, store, fetcher, reporter)
        models = {
            launch.model: model_folder(
                project, found, launch.model or preset.model, store, fetcher, reporter
            )
            for launch in (LaunchPlan(), *expected.launches)
        }
    return judge_launches(starter, image, preset, models, expected, store, reporter)


def judge_launches(
    starter: Runner,
    image: Image,
    preset: Preset,
    models: Mapping[str, Path],
    expected: Expected,
    store: Store,
    reporter: Reporter,
) -> Evidence:
    """Start and judge one launch after the other; the evidence of all of them.

    models: the folder of each launch's model; "" is the preset's.

    Where the default launch does not start, nothing else is tried, and its error is raised;
    any other that does not start is a failure among the cases.
    """
    gates = Gates(expected, store=store, runner=starter.name, reporter=reporter)
    for launch in expected.launches:
        reporter.note(f"launch {launch.name}: {' '.join(launch.args) or 'the preset as it is'}")
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                started = starter.start(image, _launch(preset, launch, models[launch.model]))
                server = stack.enter_context(started)
            except (JudgedBad, CannotHere) as error:
                if launch.name == DEFAULT_LAUNCH:
                    raise
                gates.not_started(launch, error)
                continue
            gates.judge(server, launch, time.monotonic() - begin)
    return gates.evidence()


def model_folder(
    project: Project,
    found: Target,
    name: str,
    store: Store,
    fetcher: Fetcher,
    reporter: Reporter,
) -> Path:
    """The folder of a gates' model, made from the lock where it is not there."""
    graph, goal = model_graph(project, found.lock.resolved, name)
    tree: Digest = build(store, graph, goal, fetcher, reporter)[goal]["out"]
    target = store.roots / f"model-{tree.sha256}" / name
    if not target.is_dir():
        scratch = Path(tempfile.mkdtemp(prefix="model-", dir=store.blobs.tmp))
        try:
            unpack(read_tree(store.blobs.path(tree.sha256)), scratch / "whole" / name)
            (scratch / "whole").rename(target.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _endpoint(url: str, served: str) -> Runner:
    from kiln.run.endpoint import EndpointRunner

    token = os.environ.get("KILN_ENDPOINT_TOKEN", "")
    return EndpointRunner(url, served, {"Authorization": f"Bearer {token}"} if token else None)


def _runner(
    project: Project,
    found: Target,
    wanted: str,
    store: Store,
    fetcher: Fetcher,
    reporter: Reporter,
) -> Runner:
    if wanted in ("docker", "auto"):
        from kiln.run.docker import DockerRunner
        from kiln.run.engine import Engine

        try:
            return DockerRunner(store, Engine.connect(), reporter)
        except CannotHere as error:
            if wanted == "docker":
                raise
            reporter.note(f"runner: bundle, since {error.what}")
    if wanted in ("bundle", "auto"):
        from kiln.compile.tools import find_runtime
        from kiln.run.bundle import BundleRunner

        ensure_tool(RUNTIMES, project, found.lock.resolved, store, fetcher, reporter)
        return BundleRunner(store, find_runtime(store, reporter), reporter)
    raise BadInput(
        "gate.unknown-runner",
        f"there is no runner {wanted!r}",
        fix="use docker, bundle, or endpoint=URL",
    )


def _launch(preset: Preset, launch: LaunchPlan, model: Path) -> Launch:
    return Launch(
        model=model,
        served_name=new_nonce(),
        args=(*preset.args, *launch.args),
        env={**preset.env, **launch.env},
        start_seconds=preset.start_seconds,
    )
