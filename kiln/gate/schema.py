"""Does a value fit a tool's parameters: the part of JSON Schema that the gate uses.

Keywords (draft 2020-12): type, properties, required, additionalProperties (false), enum.
A schema with another keyword than these and `description` is a mistake of the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.gate.model import Problem

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}
_KEYWORDS = {"type", "properties", "required", "additionalProperties", "enum", "description"}


def check_schema(value: object, schema: Mapping[str, Any], path: str = "$") -> list[Problem]:
    """What does not fit. Codes: arguments-type, -missing, -extra, -enum."""
    if unknown := schema.keys() - _KEYWORDS:
        raise ValueError(f"the gate knows no {sorted(unknown)} in a schema")
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        return [Problem("arguments-type", f"{path} is {value!r}, not of type {kind}")]
    if "enum" in schema and value not in schema["enum"]:
        return [Problem("arguments-enum", f"{path} is {value!r}, none of {schema['enum']}")]
    problems: list[Problem] = []
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                problems.append(Problem("arguments-missing", f"{path}.{name} is missing"))
        for name, item in value.items():
            if name in properties:
                problems += check_schema(item, properties[name], f"{path}.{name}")
            elif schema.get("additionalProperties") is False:
                problems.append(Problem("arguments-extra", f"{path}.{name} is not in the schema"))
    return problems
