"""A run's frozen config as a table and as files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dashboard.runs.config.fields import write_number
from trainer.config import RunConfig, read_about

ABSENT = "none"  # as the engine reads it
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    name: str
    value: str
    default: str | None  # None: it has to be given
    differs: bool
    unit: str
    help: str

    @property
    def is_long(self) -> bool:
        return "\n" in self.value or len(self.value) > 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    help: str
    settings: list[Setting]

    @property
    def num_changed(self) -> int:
        return sum(setting.differs for setting in self.settings)


def compare_with_defaults(config: RunConfig) -> list[Part]:
    own = [n for n in RunConfig.model_fields if not _is_part(getattr(config, n))]
    parts = [n for n in RunConfig.model_fields if n not in own]
    return [_part("run", config, own)] + [
        _part(
            name, getattr(config, name), list(type(getattr(config, name)).model_fields)
        )
        for name in parts
    ]


def _is_part(value: object) -> bool:
    return isinstance(value, BaseModel)


def _part(name: str, part: BaseModel, names: list[str]) -> Part:
    fields = type(part).model_fields
    return Part(
        name=name,
        help="" if name == "run" else (type(part).__doc__ or ""),
        settings=[_setting(n, fields[n], getattr(part, n)) for n in names],
    )


def _setting(name: str, field: FieldInfo, value: object) -> Setting:
    must_be_given = field.default is PydanticUndefined
    return Setting(
        name=name,
        value=write_setting(value),
        default=None if must_be_given else write_setting(field.default),
        differs=must_be_given or value != field.default,
        unit=read_about(field).get("unit", ""),
        help=field.description or "",
    )


def write_setting(value: object) -> str:
    """A value of the tree, as pages show it."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return write_number(value)
        case BaseModel():
            tree = value.model_dump(mode="json")
            return json.dumps(tree, indent=2, ensure_ascii=False)
        case list() | tuple() | dict() if not value:
            return "none"
        case tuple() if isinstance(value[0], BaseModel):
            trees = [part.model_dump(mode="json") for part in value]
            return json.dumps(trees, indent=2, ensure_ascii=False)
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def write_json(config: RunConfig) -> str:
    return config.model_dump_json(indent=2) + "\n"


def write_toml(config: RunConfig) -> str:
    return write_toml_tree(config.model_dump(mode="json"))


def write_toml_tree(tree: dict[str, Any]) -> str:
    """TOML has no null: a setting without a value is left out, or called none."""
    # Left out, these would be the default's and the run's again.
    tree["optim"] = _name_absent(tree["optim"])
    for phase in tree["phases"]:
        changes = phase["changes"]
        phase["changes"] = {part: _name_absent(changes[part]) for part in changes}
    return "\n".join(_toml_lines(tree, "")).strip() + "\n"


def _name_absent(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: ABSENT if value is None else value for n, value in settings.items()}


def _toml_lines(tree: Mapping[str, Any], path: str) -> Iterator[str]:
    keys = {_toml_key(name): value for name, value in tree.items()}
    for name, value in keys.items():
        if value is not None and not _is_table(value):
            yield f"{name} = {toml_value(value)}"
    for name, value in keys.items():
        if isinstance(value, dict):
            yield from ("", f"[{path}{name}]", *_toml_lines(value, f"{path}{name}."))
        elif _is_table(value):
            for row in value:
                yield from (
                    "",
                    f"[[{path}{name}]]",
                    *_toml_lines(row, f"{path}{name}."),
                )


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, dict) for v in value)
    )


def toml_value(value: Any) -> str:
    """JSON's strings, numbers, booleans and arrays are TOML's as well, but for DEL."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(v) for v in value if v is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else str(toml_value(name))
