from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kiln.pins.model import Asset, BuildRoot, Component, Model, Pins, Recipe
from kiln.pins.schema import schema_bytes

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_the_models() -> None:
    committed = (ROOT / "docs" / "pins.schema.json").read_bytes()
    assert committed == schema_bytes(), "run: kiln schema > docs/pins.schema.json"


def test_editors_find_it_from_pins_yaml() -> None:
    first = (ROOT / "pins.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=docs/pins.schema.json"


@pytest.mark.parametrize("model", [Pins, Recipe, Component, BuildRoot, Asset])
def test_schema_of_each_model(model: type[Model]) -> None:
    schema = json.loads(schema_bytes(model))
    top = schema["$defs"][model.__name__]
    assert top["additionalProperties"] is False
    assert top["properties"].keys() == set(model.__struct_fields__)
    assert schema_bytes(model) == schema_bytes(model)


def _patterns(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
        return own + [p for value in node.values() for p in _patterns(value)]
    return [p for value in node for p in _patterns(value)] if isinstance(node, list) else []


def test_forms_are_in_the_schema() -> None:
    schema = json.loads(schema_bytes())
    vllm = schema["$defs"]["Vllm"]["properties"]
    assert vllm["commit"]["pattern"] == "^[0-9a-f]{40}$"
    assert "40 hex" in vllm["commit"]["description"]
    found = _patterns(schema)
    assert len(found) > 10
    for pattern in found:
        # Unanchored, an editor would accept anything that has a good part.
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert not re.search(r"\\[AZz]|\(\?P|\(\?[ims]", pattern), "not in ECMA 262"
