"""The fields of RunConfig as form fields: one ConfigField for each leaf."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from trainer.config import About, RunConfig, leaves, parts_of, read_about
from trainer.rewards.rules import RULES

Kind = Literal["whole", "number", "switch", "choice", "text"]

# Paths with their own controls in the form; "" for rows, which Clone copies.
ELSEWHERE = {
    "model.path": "model",
    "data.rows": "",
    "reward.recipe": "recipe",
    "reward.step_recipe": "step_recipe",
    "evaluation.sets": "keeps_eval_sets",
    "phases": "phases",
}
RECIPE_FACTS = ("recipe.combine", "recipe.is_one_rule")
# Settings by what one wants to change: titles, and the parts of the tree.
TOPICS = {
    "Sampling": ("rollout", "data"),
    "Reward and advantage": ("reward", "advantage"),
    "Loss and KL": ("loss", "reference"),
    "Model and optimizer": ("model", "optim"),
    "Evaluation and checkpoints": ("evaluation", "checkpoint"),
    "System": ("distributed", "logging"),
}
OPTIONAL_COLUMNS = frozenset({"entry_point_column"})  # of rules' parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigField:
    """One setting: its path in the tree, and its allowed values."""

    path: str  # "optim.learning_rate"
    title: str
    help: str
    kind: Kind
    default: Any
    about: About
    choices: tuple[Any, ...] = ()
    is_optional: bool = False
    may_be_auto: bool = False  # a value, or "auto": the engine chooses

    @property
    def html_id(self) -> str:
        return "field-" + self.path.replace(".", "-")

    @property
    def unit(self) -> str:
        return self.about.get("unit", "")

    @property
    def shown_unit(self) -> str:
        """Empty if the title contains it: Prompts per step."""
        return "" if self.unit in self.title.lower() else self.unit

    @property
    def is_long(self) -> bool:
        return self.about.get("is_long", False)

    @property
    def default_text(self) -> str:
        return self.write(self.default)

    @property
    def options(self) -> list[tuple[str, str]]:
        """The value and label of each choice."""
        texts = [""] if self.is_optional else []
        texts += [self.write(choice) for choice in self.choices]
        words = self.about.get("choices", {})
        return [(text, f"{text or 'none'}: {words[text]}") for text in texts]

    def show(self, text: str) -> str:
        """A form text, as messages show it."""
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
        """A form text as a value for RunConfig; pydantic parses numbers."""
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
        """A value of the tree as a form text."""
        if value is None:
            return ""
        if isinstance(value, bool):
            off = "off" if self.kind == "choice" else ""
            return "on" if value else off
        return write_number(value) if isinstance(value, float) else str(value)


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n")  # browsers send CRLF from a text area


def write_number(number: float) -> str:
    """1e-06 as 1e-6, 1.0 as 1, without losing digits."""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldGroup:
    """A section of a part."""

    title: str
    fields: tuple[ConfigField, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigPart:
    """The settings of one part of the tree, without the main ones."""

    name: str
    title: str
    help: str
    groups: tuple[FieldGroup, ...]
    topic: str


@cache
def all_fields() -> dict[str, ConfigField]:
    return {
        path: _field(path, info)
        for path, info in leaves(RunConfig)
        if path not in ELSEWHERE
    }


@cache
def main_fields() -> tuple[ConfigField, ...]:
    main = [field for field in all_fields().values() if "main" in field.about]
    return tuple(sorted(main, key=lambda field: field.about["main"]))


@cache
def advanced_parts() -> tuple[ConfigPart, ...]:
    known = parts_of(RunConfig)
    return tuple(
        ConfigPart(
            name=name,
            title=part_title(name),
            help=(known[name].__doc__ or "").strip(),
            groups=tuple(_groups(name)),
            topic=topic,
        )
        for topic, names in TOPICS.items()
        for name in names
    )


def part_title(name: str) -> str:
    return RunConfig.model_fields[name].title or name


def _groups(part: str) -> Iterator[FieldGroup]:
    """One for each section; settings before the first section have no title."""
    groups: list[tuple[str, list[ConfigField]]] = [("", [])]
    for path, field in all_fields().items():
        if path.startswith(f"{part}.") and "main" not in field.about:
            if section := field.about.get("section"):
                groups.append((section, []))
            groups[-1][1].append(field)
    for title, fields in groups:
        if fields:
            yield FieldGroup(title=title, fields=tuple(fields))


def _field(path: str, info: FieldInfo) -> ConfigField:
    kinds = [
        get_args(k)[0] if get_origin(k) is Annotated else k for k in _without_none(info)
    ]
    kind = _kind(kinds)
    choices = tuple(c for k in kinds if get_origin(k) is Literal for c in get_args(k))
    if kind == "choice" and bool in kinds:
        choices = (*choices, True, False)
    return ConfigField(
        path=path,
        title=info.title or path,
        help=info.description or "",
        kind=kind,
        default=info.get_default(call_default_factory=True),
        about=read_about(info),
        choices=choices if kind == "choice" else (),
        is_optional=type(None) in get_args(info.annotation),
        may_be_auto="auto" in choices and get_origin(kinds[0]) is not Literal,
    )


def _without_none(info: FieldInfo) -> tuple[Any, ...]:
    annotation = info.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for part in get_args(annotation) if part is not type(None))
    return (annotation,)


def _kind(kinds: Sequence[Any]) -> Kind:
    if get_origin(kinds[0]) is Literal or (kinds[0] is bool and len(kinds) > 1):
        return "choice"
    by_type: dict[Any, Kind] = {bool: "switch", int: "whole", float: "number"}
    return by_type.get(kinds[0], "text")


def read_tree(texts: Mapping[str, str]) -> dict[str, Any]:
    """The tree that RunConfig validates, from a form's texts."""
    tree: dict[str, Any] = {}
    for path, field in all_fields().items():
        put(tree, path, field.read(texts[path]))
    return tree


def read_texts(form: Mapping[str, Any]) -> dict[str, str]:
    """The submitted texts; a switch that is off is not submitted."""
    return {
        path: _unix_lines(
            form.get(path, "" if field.kind == "switch" else field.default_text)
        )
        for path, field in all_fields().items()
    }


def write_texts(tree: Mapping[str, Any]) -> dict[str, str]:
    """A form's texts from a stored tree, with defaults for missing settings."""
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


@cache
def unused_table() -> list[dict[str, Any]]:
    """When which setting has no effect, and why: `no_effect` in the form's texts."""
    return [
        {
            "path": path,
            "when": {
                other: [_text(other, value) for value in values]
                for other, values in when.items()
            },
            "reason": reason,
        }
        for path, info in leaves(RunConfig)
        for reason, when in read_about(info).get("no_effect", {}).items()
    ]


def _text(path: str, value: Any) -> str:
    return str(value) if path in RECIPE_FACTS else all_fields()[path].write(value)


def find_unused(
    texts: Mapping[str, str], facts: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings without effect in a form with these texts, and why."""
    known = {**dict.fromkeys(RECIPE_FACTS, ""), **(facts or {}), **texts}
    found: dict[str, str] = {}
    for unused in unused_table():
        when = unused["when"].items()
        if all(_is_one_of(path, known[path], values) for path, values in when):
            found.setdefault(unused["path"], unused["reason"])
    return found


def _is_one_of(path: str, text: str, values: Sequence[str]) -> bool:
    if path in RECIPE_FACTS:
        return text in values
    return any(all_fields()[path].is_same(text, value) for value in values)


def recipe_facts(recipe: Mapping[str, Any]) -> dict[str, str]:
    """The facts about a recipe that may make settings unused."""
    rules = recipe.get("rules") or [{}]
    combine = recipe.get("combine", "sum")
    # Normalised, one rule is the same with or without a sum, but for its weight.
    is_alone = (
        len(rules) == 1
        and combine == "sum"
        and rules[0].get("weight", 1.0) == 1
        and not recipe.get("clip")
        and not rules[0].get("schedule")
    )
    return {"recipe.combine": combine, "recipe.is_one_rule": "yes" if is_alone else ""}


def needed_columns(recipe: Mapping[str, Any]) -> list[str]:
    """The columns that the rows of a dataset need for its rules.

    >>> needed_columns({"rules": [{"kind": "code_tests"}]})
    ['tests']
    """
    found: set[str] = set()
    for rule in recipe.get("rules", []):
        params = RULES[rule["kind"]].params_model.model_fields
        for name in (n for n in params if n.endswith("_column")):
            column = rule.get("params", {}).get(name, params[name].default)
            if column and name not in OPTIONAL_COLUMNS:
                found.update(one.strip() for one in str(column).split(","))
    return sorted(found)
