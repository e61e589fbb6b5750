"""Golden files of the small pin: a key, a lock or a digest never changes by accident.

A change on purpose raises the version of a step (or says in the commit why all keys
move), and is written with KILN_UPDATE_GOLDEN=1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kiln.errors import BadInput, Problems
from kiln.graph.action import resolve
from kiln.graph.plan import make_plan
from kiln.image.assemble import GOAL, assemble
from kiln.image.build import build_pin
from kiln.image.prepare import prepare
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.resolve.lock import lock_pin
from kiln.store import Store
from tests.helpers.small import Small, make_small

HERE = Path(__file__).parent / "small"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything of the small pin that has a golden file, as text by file name."""
    small = make_small(tmp_path_factory.mktemp("golden"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.environment().items():
            if name.startswith(("PIP_", "KILN_")):
                patch.setenv(name, value)
        return _build(small)


def _build(small: Small) -> dict[str, str]:
    store, quiet = Store(small.store), Silent()
    lock_pin(load_project(small.root), None, store, quiet)
    before = small.kiln("plan").stdout
    built = build_pin(load_project(small.root), None, store, quiet)
    project = load_project(small.root)
    graph = assemble(project, prepare(project, None, store, quiet, fetch=False)).graph
    results = make_plan(store, graph, GOAL).results
    keys = {}
    for name, node in graph.nodes.items():
        inputs = resolve(node, results)
        assert inputs is not None
        keys[name] = node.key(inputs)
    assert built.lock.outputs is not None
    manifest = store.blobs.read(built.manifest.sha256)
    config = store.blobs.read(built.lock.outputs.config.sha256)
    return {
        "keys.json": _pretty(keys),
        "plan.txt": before,
        "small.lock": (small.root / "images/locks/small.lock").read_text(),
        "small.files": (small.root / "images/locks/small.files").read_text(),
        "manifest.json": _pretty(json.loads(manifest)),
        "config.json": _pretty(json.loads(config)),
    }


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    "name", ["keys.json", "plan.txt", "small.lock", "small.files", "manifest.json", "config.json"]
)
def test_golden(built: dict[str, str], name: str) -> None:
    golden = HERE / name
    if os.environ.get("KILN_UPDATE_GOLDEN"):
        HERE.mkdir(exist_ok=True)
        golden.write_text(built[name])
    assert built[name] == golden.read_text(), f"{name} changed; see this module's docstring"


def test_the_golden_errors(tmp_path: Path) -> None:
    """What a person reads when pins.yaml is wrong in many ways at once."""
    small = make_small(tmp_path)
    (small.root / "pins.yaml").write_text(
        "default: smal\n"
        "pins:\n"
        "  small:\n"
        "    recipe: tinny\n"
        "    vllm: {version: 1.0.0+tiny, wheel: tiny-vllm, relable: vllm==1.0.0}\n"
        "    python: 3.11\n"
        "    torch: {version: [2]}\n"
        "    torch: {version: '2.0'}\n"
    )
    with pytest.raises((BadInput, Problems)) as error:
        load_project(small.root)
    golden = HERE / "errors.txt"
    text = str(error.value) + "\n"
    if os.environ.get("KILN_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
