"""The fields of RunConfig as a form sees them: one ConfigField for each leaf."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dashboard.runs.config.choice_labels import label_choice
from dashboard.runs.config.field_groups import GROUPS
from trainer.config import RunConfig

Kind = Literal["whole", "number", "switch", "choice", "text"]

# Other controls of the form hold these, or Clone carries them over.
ELSEWHERE = frozenset(
    {
        "model.path",
        "data.rows",
        "reward.recipe",
        "reward.step_recipe",
        "evaluation.sets",
        "phases",
    }
)
# What people change from run to run, in the order they think about it.
MAIN = (
    "optim.num_steps",
    "optim.learning_rate",
    "rollout.prompts_per_step",
    "rollout.group_size",
    "rollout.max_new_tokens",
    "rollout.temperature",
    "loss.kl_coef",
    "data.num_eval_rows",
    "evaluation.every_steps",
    "checkpoint.every_steps",
    "seed",
)
PART_TITLES = {"optim": "Optimizer"}
LONG_TEXTS = frozenset({"data.system_prompt", "data.prompt_template"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigField:
    """One setting: where it is in the tree, and what may be put there."""

    path: str  # "optim.learning_rate"
    title: str
    help: str
    kind: Kind
    default: Any
    unit: str = ""
    bounds: str = ""  # "1 to 65,536"
    choices: tuple[Any, ...] = ()
    is_optional: bool = False
    may_be_auto: bool = False  # a value, or "auto" for one that the engine chooses

    @property
    def html_id(self) -> str:
        return "field-" + self.path.replace(".", "-")

    @property
    def shown_unit(self) -> str:
        """Left out where the title says it already: Prompts per step."""
        return "" if self.unit in self.title.lower() else self.unit

    @property
    def is_long(self) -> bool:
        return self.path in LONG_TEXTS

    @property
    def default_text(self) -> str:
        return self.write(self.default)

    @property
    def options(self) -> list[tuple[str, str]]:
        """What a choice sends, and what it says."""
        texts = [""] if self.is_optional else []
        texts += [self.write(choice) for choice in self.choices]
        return [(text, label_choice(self.path, text)) for text in texts]

    def show(self, text: str) -> str:
        """A text of the form as a sentence names it."""
        if self.kind == "switch":
            return "on" if text else "off"
        return text or "empty"

    def is_same(self, text: str, other: str) -> bool:
        """Whether two texts mean one value: 1e-6 and 0.000001."""
        if self.kind not in ("whole", "number"):
            return text == other
        try:
            return float(text) == float(other)
        except ValueError:
            return text.strip() == other.strip()

    def read(self, text: str) -> Any:
        """What the form holds, as RunConfig takes it; pydantic reads the numbers."""
        if self.kind == "switch":
            return text == "on"
        if self.kind == "text":
            return _unix_lines(text) if text or not self.is_optional else None
        if self.is_optional and not text.strip():
            return None
        if self.kind == "choice":
            named = {self.write(choice): choice for choice in self.choices}
            return named.get(text, text)
        return text.strip()

    def write(self, value: Any) -> str:
        """A value of the tree, as the form holds it."""
        if value is None:
            return ""
        if isinstance(value, bool):
            off = "off" if self.kind == "choice" else ""
            return "on" if value else off
        return write_number(value) if isinstance(value, float) else str(value)


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n")  # what browsers send from a text area


def write_number(number: float) -> str:
    """1e-06 as 1e-6, 1.0 as 1; every digit is kept."""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldGroup:
    """Settings of a part that are thought about together."""

    title: str
    fields: tuple[ConfigField, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigPart:
    """The settings of one part of the tree that are not among the main ones."""

    name: str
    title: str
    help: str
    groups: tuple[FieldGroup, ...]


@cache
def all_fields() -> dict[str, ConfigField]:
    return {field.path: field for field in _walk(RunConfig, "")}


@cache
def main_fields() -> tuple[ConfigField, ...]:
    return tuple(all_fields()[path] for path in MAIN)


@cache
def advanced_parts() -> tuple[ConfigPart, ...]:
    parts = []
    for name, info in RunConfig.model_fields.items():
        fields = tuple(
            field
            for path, field in all_fields().items()
            if path.startswith(f"{name}.") and path not in MAIN
        )
        if fields:
            about = (_part_type(info).__doc__ or "").strip()
            title = PART_TITLES.get(name, name.capitalize())
            groups = _groups(name, fields)
            parts.append(ConfigPart(name=name, title=title, help=about, groups=groups))
    return tuple(parts)


def _groups(part: str, fields: tuple[ConfigField, ...]) -> tuple[FieldGroup, ...]:
    """As GROUPS has them; what it does not name comes last, so nothing is lost."""
    left = {field.path.removeprefix(f"{part}."): field for field in fields}
    groups = [
        FieldGroup(title=title, fields=tuple(left.pop(n) for n in names if n in left))
        for title, names in GROUPS.get(part, ())
    ]
    return (*groups, FieldGroup(title="", fields=tuple(left.values())))


def _part_type(info: FieldInfo) -> type[BaseModel]:
    assert isinstance(info.annotation, type)
    assert issubclass(info.annotation, BaseModel)
    return info.annotation


def _walk(model: type[BaseModel], prefix: str) -> Iterator[ConfigField]:
    for name, info in model.model_fields.items():
        path = prefix + name
        if path in ELSEWHERE:
            continue
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _walk(info.annotation, f"{path}.")
        else:
            yield _field(path, info)


def _field(path: str, info: FieldInfo) -> ConfigField:
    kinds = [get_args(k)[0] if _is_bounded(k) else k for k in _without_none(info)]
    extra, kind = info.json_schema_extra, _kind(kinds)
    choices = tuple(c for k in kinds if get_origin(k) is Literal for c in get_args(k))
    if kind == "choice" and bool in kinds:
        choices = (*choices, True, False)
    return ConfigField(
        path=path,
        title=info.title or path.rpartition(".")[2].replace("_", " ").capitalize(),
        help=info.description or "",
        kind=kind,
        default=info.get_default(call_default_factory=True),
        unit=str(extra.get("unit", "")) if isinstance(extra, dict) else "",
        bounds=_bounds(_rules(info)),
        choices=choices if kind == "choice" else (),
        is_optional=type(None) in get_args(info.annotation),
        may_be_auto="auto" in choices and get_origin(kinds[0]) is not Literal,
    )


def _without_none(info: FieldInfo) -> tuple[Any, ...]:
    annotation = info.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for part in get_args(annotation) if part is not type(None))
    return (annotation,)


def _is_bounded(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _rules(info: FieldInfo) -> list[Any]:
    """Those of the field, or of the number that it may hold."""
    inner = (get_args(k)[1] for k in _without_none(info) if _is_bounded(k))
    return [*info.metadata, *(rule for each in inner for rule in each.metadata)]


def _kind(kinds: Sequence[Any]) -> Kind:
    if get_origin(kinds[0]) is Literal or (kinds[0] is bool and len(kinds) > 1):
        return "choice"
    by_type: dict[Any, Kind] = {bool: "switch", int: "whole", float: "number"}
    return by_type.get(kinds[0], "text")


def _bounds(metadata: list[Any]) -> str:
    low = high = ""
    for rule in metadata:
        match rule:
            case Ge():
                low = f"{rule.ge:,}"
            case Gt():
                low = f"above {rule.gt:,}"
            case Le():
                high = f"{rule.le:,}"
            case Lt():
                high = f"below {rule.lt:,}"
    if low and high:
        return f"{low} to {high}"
    if low:
        return low if low.startswith("above") else f"{low} or more"
    return high if high.startswith("below") else f"at most {high}" if high else ""


def read_tree(texts: Mapping[str, str]) -> dict[str, Any]:
    """The tree that RunConfig validates, made of a form's texts."""
    tree: dict[str, Any] = {}
    for path, field in all_fields().items():
        put(tree, path, field.read(texts[path]))
    return tree


def read_texts(form: Mapping[str, Any]) -> dict[str, str]:
    """What was sent for each field; a switch that is off is not sent at all."""
    return {
        path: form.get(path, "" if field.kind == "switch" else field.default_text)
        for path, field in all_fields().items()
    }


def write_texts(tree: Mapping[str, Any]) -> dict[str, str]:
    """A form's texts, made of a stored tree; what the tree lacks is the default."""
    texts = {}
    for path, field in all_fields().items():
        value = _get(tree, path, field.default)
        texts[path] = field.write(value)
    return texts


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parts, name = path.split(".")
    for part in parts:
        tree = tree.setdefault(part, {})
    tree[name] = value


def _get(tree: Any, path: str, default: Any) -> Any:
    for part in path.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return default
        tree = tree[part]
    return tree
