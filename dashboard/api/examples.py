"""An example of what a JSON schema describes, of its fields' own examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
BY_FORMAT = {"date-time": "2026-03-01T12:00:00Z", "binary": "(bytes)"}
BY_TYPE: dict[str, Any] = {
    "string": "",
    "integer": 1,
    "number": 0.5,
    "boolean": False,
    "null": None,
}


def example_of(schema: Schema, parts: Mapping[str, Schema]) -> Any:
    """
    >>> example_of({"type": "array", "items": {"type": "integer", "examples": [7]}}, {})
    [7]
    """
    if "$ref" in schema:
        return example_of(parts[schema["$ref"].rsplit("/", 1)[1]], parts)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "default" in schema:
        return schema["default"]
    for name in ("anyOf", "allOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0], parts)
    if "const" in schema:
        return schema["const"]
    return _of_type(schema, parts)


def _of_type(schema: Schema, parts: Mapping[str, Schema]) -> Any:
    kind = schema.get("type")
    if kind == "array":
        return [example_of(schema.get("items", {}), parts)]
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: example_of(each, parts) for name, each in fields.items()}
    return BY_FORMAT.get(schema.get("format", ""), BY_TYPE.get(str(kind)))
