"""Start a built image the way a preset says, with a gates' model, and judge it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere
from kiln.gate.model import Evidence, Expected
from kiln.gate.run import judge
from kiln.graph.build import Fetcher, build
from kiln.image.prepare import LockFetcher
from kiln.image.read import read_image
from kiln.image.roots import model_graph
from kiln.image.target import Target
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
    store: Store,
    reporter: Reporter,
) -> Evidence:
    """Run the gates on a fresh start, or on a given server (runner "endpoint=URL").

    Raises BadInput("gate.unknown-runner"), CannotHere where this machine cannot start it,
    JudgedBad where it does not start.
    """
    image = read_image(store, expected.digest)
    fetcher = LockFetcher(project, found.lock, store, reporter)
    starter = _runner(project, found, runner, store, fetcher, reporter)
    if runner.startswith(ENDPOINT):
        model = Path(preset.model)  # whatever the endpoint serves; nothing is mounted
    else:
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


def _runner(
    project: Project,
    found: Target,
    wanted: str,
    store: Store,
    fetcher: Fetcher,
    reporter: Reporter,
) -> Runner:
    if wanted.startswith(ENDPOINT):
        from kiln.run.endpoint import EndpointRunner

        return EndpointRunner(wanted.removeprefix(ENDPOINT))
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
