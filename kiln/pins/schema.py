"""JSON Schema of the models, for editors; made from the models alone."""

from __future__ import annotations

import json

import msgspec

from kiln.pins.model import Model, Pins


def schema_bytes(model: type[Model] = Pins) -> bytes:
    """JSON Schema (2020-12) of a model, sorted and indented: the same bytes every time.

    docs/pins.schema.json holds that of pins.yaml.
    """
    schema = msgspec.json.schema(model)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    text = json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode()
