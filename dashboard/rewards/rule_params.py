"""A rule's parameters as form fields, described by its pydantic model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.rewards.rules import RULES

INPUT_KINDS = {
    "boolean": "switch",
    "integer": "number",
    "number": "number",
    "object": "object",
    "string": "text",
}
# Longer texts have an input with several lines.
LONG_TEXT = 2_000


class InvalidValue(ValueError):
    """The input is not a value of this kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamField:
    name: str
    label: str
    help: str
    kind: str  # switch, choice, number, text, lines, object or json
    default: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    step: str = "any"
    max_length: int | None = None
    is_optional: bool = False

    @property
    def is_tall(self) -> bool:
        """Whether its input has several lines."""
        is_long = (self.max_length or 0) > LONG_TEXT
        return self.kind in ("lines", "object", "json") or is_long

    @property
    def is_program(self) -> bool:
        return "\n" in self.default

    @property
    def num_lines(self) -> int:
        """The initial height of its input; more for a program."""
        return 14 if self.is_program else 4

    @property
    def shown_default(self) -> str:
        """For the help line; empty if the default is long."""
        return "" if self.is_tall else self.default

    @property
    def bounds(self) -> str:
        """The bounds in words; empty for choices and switches."""
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:,} to {self.maximum:,}"
        if self.minimum is not None:
            return f"{self.minimum:,} or more"
        if self.maximum is not None:
            return f"{self.maximum:,} or less"
        return ""


@functools.cache  # The schema takes 0.8 ms; a page needs it many times.
def param_fields(kind: str) -> tuple[ParamField, ...]:
    schema = RULES[kind].params_model.model_json_schema()
    properties = schema.get("properties", {})
    return tuple(_field(name, described) for name, described in properties.items())


def _field(name: str, described: dict[str, Any]) -> ParamField:
    is_optional, shape = _shape(described)
    kind = _kind(shape)
    return ParamField(
        name=name,
        label=_label(name, described.get("title", "")),
        help=described.get("description", ""),
        kind=kind,
        default=as_text(described.get("default"), kind),
        choices=tuple(str(choice) for choice in shape.get("enum", ())),
        minimum=shape.get("minimum", shape.get("exclusiveMinimum")),
        maximum=shape.get("maximum", shape.get("exclusiveMaximum")),
        step="1" if shape.get("type") == "integer" else "any",
        max_length=shape.get("maxLength"),
        is_optional=is_optional,
    )


def _kind(shape: dict[str, Any]) -> str:
    if "enum" in shape:
        return "choice"
    if shape.get("items", {}).get("type") == "string":
        return "lines"
    return INPUT_KINDS.get(shape.get("type", ""), "json")


def _label(name: str, title: str) -> str:
    # pydantic derives a title from the name.
    words = name.replace("_", " ")
    return title if title and title != words.title() else words.capitalize()


def _shape(described: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether it may be null, and the schema without null."""
    options = described.get("anyOf", [])
    others = [option for option in options if option.get("type") != "null"]
    if len(others) == 1:
        return len(options) > 1, {**described, **others[0]}
    if "const" in described:
        return False, {**described, "enum": [described["const"]]}
    return False, described


def as_text(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else ""
    if kind == "lines":
        return "\n".join(value)
    if kind == "json" or isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def as_value(field: ParamField, text: str) -> Any:
    """What the model validates; it reads numbers from text by itself."""
    if field.kind == "switch":
        return text == "on"
    if field.is_optional and not text.strip():
        return None
    if field.kind == "choice" and text not in field.choices:
        raise InvalidValue(f"Choose an option from the list; got {text[:60]!r}.")
    if field.kind == "lines":
        return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    if field.kind in ("object", "json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            example = (
                '{"tag": "final"}' if field.kind == "object" else '[1, 2] or ["a"]'
            )
            raise InvalidValue(
                f"Invalid JSON: {text[:60]!r}. Example: {example}."
            ) from None
    # Browsers send line ends as CR LF.
    return text.replace("\r\n", "\n")


def as_texts(kind: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Every parameter as a form shows it, defaults filled in."""
    return {
        field.name: as_text(params[field.name], field.kind)
        if field.name in params
        else field.default
        for field in param_fields(kind)
    }
