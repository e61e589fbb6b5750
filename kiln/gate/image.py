"""Gate a pin's image: find it, its model and a runner; start, judge, or replay.

Evidence belongs to (digest, preset), and a preset is what it says: the evidence of one
whose flags, or whose model, have changed since is not replayed.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kiln.canonical import Digest, key
from kiln.errors import BadInput, CannotHere
from kiln.gate.model import Evidence, Expected, Patch
from kiln.gate.run import judge, replay
from kiln.graph.build import build
from kiln.image.build import LockFetcher
from kiln.image.identity import identify
from kiln.image.read import read_image
from kiln.image.roots import model_graph
from kiln.image.target import Target, find_target
from kiln.image.tools import BUBBLEWRAP, RUNTIMES, ensure_tool
from kiln.lock.model import Lock
from kiln.lock.request import folder_hash
from kiln.pins.load import Project
from kiln.pins.model import Preset
from kiln.progress import Reporter
from kiln.run.runner import Launch, Runner, new_nonce
from kiln.source.tree import read_tree, unpack
from kiln.store import Store

ENDPOINT = "endpoint="


@dataclass(frozen=True)
class Judged:
    """A verdict. replayed: it comes from earlier evidence; nothing was started."""

    pin: str
    evidence: Evidence
    replayed: bool

    @property
    def digest(self) -> str:
        """The image's."""
        return f"sha256:{self.evidence.digest}"

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 4 not run."""
        return self.evidence.exit_code


def gate_target(
    project: Project,
    target: str | None,
    store: Store,
    reporter: Reporter,
    *,
    preset: str = "default",
    runner: str = "auto",
    again: bool = False,
) -> Judged:
    """Judge the image of a pin or digest under a preset.

    runner: "auto", "docker", "bundle" or "endpoint=URL". Raises BadInput for what is not
    there, CannotHere where this machine cannot start it, JudgedBad where it does not start.
    """
    found = find_target(project, target)
    chosen = found.pin.presets.get(preset)
    if chosen is None:
        raise BadInput(
            "gate.no-preset",
            f"pin {found.name!r} has no preset {preset!r}",
            where=project.where("pins", found.name),
            why=f"it has: {', '.join(found.pin.presets) or 'none'}",
            fix="add one under `presets`, or name one that is there with --preset",
        )
    expected = _expected(project, found, preset, chosen)
    if not again and not runner.startswith(ENDPOINT):
        old = replay(store, expected.digest, preset)
        if old is not None and _still_holds(old, expected):
            return Judged(found.name, old, replayed=True)
    image = read_image(store, expected.digest)
    fetcher = LockFetcher(project, found.lock, store, reporter)
    resolved = found.lock.resolved
    if runner.startswith(ENDPOINT):
        model = Path(chosen.model)  # whatever the endpoint serves; nothing is mounted
    else:
        ensure_tool(BUBBLEWRAP, project, resolved, store, fetcher, reporter)
        model = _model(project, found, chosen.model, store, fetcher, reporter)
    starter = _runner(project, found, runner, store, fetcher, reporter)
    launch = _launch(chosen, model)
    with starter.start(image, launch) as server:
        evidence = judge(server, expected, store=store, runner=starter.name, reporter=reporter)
    return Judged(found.name, evidence, replayed=False)


def _expected(project: Project, found: Target, name: str, preset: Preset) -> Expected:
    recipe = project.recipe(found.pin.recipe)
    local = found.lock.local
    assert local is not None, "outputs without a local part are never written"
    identity = identify(found.name, found.pin, found.lock.resolved, local)
    return Expected(
        digest=found.outputs.manifest.sha256,
        preset=name,
        preset_hash=_preset_hash(project, found.lock, preset),
        pin=found.name,
        kiln_id=identity.id,
        patch_set=identity.patch_set,
        vllm_version=identity.version,
        torch_version=found.pin.torch.version,
        patches=tuple(sorted(Patch(p.id, p.sha256) for p in local.patches)),
        extensions=recipe.extensions,
        interpreter=recipe.python.interpreter if recipe.python else "",
        auto_tools="--enable-auto-tool-choice" in preset.args,
    )


def _preset_hash(project: Project, lock: Lock, preset: Preset) -> str:
    """Over the launch, and over what its model is made from."""
    closure = lock.resolved.closures[f"model/{preset.model}"]
    folder = project.root / "build" / "models" / preset.model
    return key(
        {
            "preset": msgspec.to_builtins(preset),
            "model": msgspec.to_builtins(closure),
            "recipe": folder_hash(folder),
        }
    )


def _still_holds(old: Evidence, expected: Expected) -> bool:
    """Whether evidence may be replayed: whole, of this preset, and with a verdict."""
    return old.complete and old.preset_hash == expected.preset_hash and old.verdict != "not-run"


def _model(
    project: Project,
    found: Target,
    name: str,
    store: Store,
    fetcher: LockFetcher,
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
    fetcher: LockFetcher,
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
