"""Start a built image the way a preset says, with a gates' model, and judge it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere
from kiln.gate.model import Evidence, Expected
from kiln.gate.run import judge
from kiln.graph.build import Fetcher, build
from kiln.image.prepare import LockFetcher
from kiln.image.roots import model_graph
from kiln.image.target import Target, read_target
from kiln.image.tools import BUBBLEWRAP, RUNTIMES, ensure_tool
from kiln.pins.load import Project
from kiln.pins.model import Preset
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
    """Run the gates on a fresh start, or on a given server (runner "endpoint=URL").

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
        model = Path(preset.model)  # whatever the endpoint serves; nothing is mounted
    else:
        starter = _runner(project, found, runner, store, fetcher, reporter)
        resolved = found.lock.resolved
        ensure_tool(BUBBLEWRAP, project, resolved, store, fetcher, reporter)
        model = model_folder(project, found, preset.model, store, fetcher, reporter)
    with starter.start(image, _launch(preset, model)) as server:
        return judge(server, expected, store=store, runner=starter.name, reporter=reporter)


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


def _launch(preset: Preset, model: Path) -> Launch:
    return Launch(
        model=model,
        served_name=new_nonce(),
        args=preset.args,
        env=preset.env,
        start_seconds=preset.start_seconds,
    )
