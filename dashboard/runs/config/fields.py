"""The settings of a run as form fields, and the errors in their values."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError

from dashboard.project.schema_forms import (
    SchemaField,
    explain,
    message_of,
    quote,
    schema_fields,
    unix_lines,
)
from trainer.config import RunConfig, leaves, parts_of, read_about
from trainer.rewards.rules import RULES

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
    "": ("environment",),  # beside the dataset, whose prompts it continues
    "Sampling": ("rollout", "curriculum", "data"),
    "Reward and advantage": ("reward", "advantage"),
    "Loss and KL": ("loss", "reference"),
    "Model and optimizer": ("model", "optim"),
    "Evaluation and checkpoints": ("evaluation", "checkpoint"),
    "System": ("distributed", "logging"),
}
MAX_ERRORS = 200
# How messages about phases as a whole start.
OF_PHASES = ('Phase "', "The phases have")
OPTIONAL_COLUMNS = frozenset({"entry_point_column"})  # of rules' parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldGroup:
    """A section of a part."""

    title: str
    fields: tuple[SchemaField, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigPart:
    """The settings of one part of the tree, without the main ones."""

    name: str
    title: str
    help: str
    groups: tuple[FieldGroup, ...]
    topic: str


@cache
def all_fields() -> dict[str, SchemaField]:
    fields = {field.path: field for field in schema_fields(RunConfig)}
    paths = [path for path, _ in leaves(RunConfig) if path not in ELSEWHERE]
    return {path: fields[path] for path in paths}


@cache
def main_fields() -> tuple[SchemaField, ...]:
    return tuple(
        sorted(
            [field for field in all_fields().values() if "main" in field.about],
            key=lambda field: field.about["main"],
        )
    )


@cache
def advanced_parts() -> tuple[ConfigPart, ...]:
    models = parts_of(RunConfig)
    return tuple(
        ConfigPart(
            name=name,
            title=part_title(name),
            help=(models[name].__doc__ or "").strip(),
            groups=tuple(_groups(name)),
            topic=topic,
        )
        for topic, names in TOPICS.items()
        for name in names
    )


def part_title(name: str) -> str:
    return RunConfig.model_fields[name].title or name


def _groups(part: str) -> Iterator[FieldGroup]:
    """Group by section; settings before the first section have no title."""
    groups: list[tuple[str, list[SchemaField]]] = [("", [])]
    for path, field in all_fields().items():
        if path.startswith(f"{part}.") and "main" not in field.about:
            if section := field.about.get("section"):
                groups.append((section, []))
            groups[-1][1].append(field)
    for title, fields in groups:
        if fields:
            yield FieldGroup(title=title, fields=tuple(fields))


def read_tree(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the tree that RunConfig validates, from a form's texts."""
    tree: dict[str, Any] = {}
    for path, field in all_fields().items():
        put(tree, path, field.read_or_text(texts[path]))
    return tree


def read_texts(form: Mapping[str, Any]) -> dict[str, str]:
    """Return the submitted texts; a switch that is off is not submitted."""
    return {
        path: unix_lines(
            form.get(path, "" if field.kind == "switch" else field.default_text)
        )
        for path, field in all_fields().items()
    }


def write_texts(tree: Mapping[str, Any]) -> dict[str, str]:
    """Write a stored tree as a form's texts, with defaults for missing settings."""
    return {
        path: field.write(_get(tree, path, field.default))
        for path, field in all_fields().items()
    }


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


@dataclass(slots=True)
class Problems:
    """Messages by form field, and general ones about several fields."""

    by_field: dict[str, list[str]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    general: list[str] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.by_field or self.general)

    @property
    def messages(self) -> list[str]:
        """All of them, without duplicates."""
        of_fields = [text for texts in self.by_field.values() for text in texts]
        return list(dict.fromkeys([*self.general, *of_fields]))

    @property
    def links(self) -> list[tuple[str, str]]:
        """The messages of single fields, each with the HTML ID of its field."""
        return [
            (f"field-{control.replace('.', '-')}", text)
            for control, texts in self.by_field.items()
            for text in texts
            if text not in self.general
        ]

    def add(self, control: str, message: str) -> None:
        self.by_field[control].append(message)


def find_problems(tree: dict[str, Any]) -> Problems:
    problems = Problems()
    for error in errors_of(tree):
        path = ".".join(str(part) for part in error["loc"])
        if path in all_fields():
            problems.add(path, explain(all_fields()[path], error))
        elif path.startswith("phases."):
            problems.add("phases", _phase_sentence(error))
        elif control := _control(path):
            problems.add(control, message_of(error))
        else:
            _add_cross_field(problems, tree, message_of(error))
    return problems


def errors_of(tree: dict[str, Any]) -> list[Any]:
    try:
        RunConfig.model_validate(tree)
    except ValidationError as error:
        return list(error.errors(include_url=False))[:MAX_ERRORS]
    return []


def _control(path: str) -> str | None:
    for prefix, control in ELSEWHERE.items():
        if path == prefix or path.startswith(f"{prefix}."):
            return control
    return None


def _add_cross_field(problems: Problems, tree: dict[str, Any], message: str) -> None:
    problems.general.append(message)
    if message.startswith(OF_PHASES):
        problems.add("phases", message)
        return  # no setting's default fixes a phase
    if "reward.step_recipe" in message:
        problems.add("step_recipe", message)
    for path in all_fields():
        if _default_heals(tree, path, message):
            problems.add(path, message)


def _default_heals(tree: dict[str, Any], path: str, message: str) -> bool:
    """Tell whether resetting this field alone to its default removes the problem."""
    healed = copy.deepcopy(tree)
    put(healed, path, all_fields()[path].default)
    return all(message_of(error) != message for error in errors_of(healed))


def _phase_sentence(error: Mapping[str, Any]) -> str:
    _, number, *place = error["loc"]
    where = f"Phase {number + 1}" if isinstance(number, int) else "Phases"
    inside = f", {'.'.join(map(str, place))}" if place else ""
    if error["type"] == "extra_forbidden":
        return (
            f"{where}{inside}: a phase has name, num_steps and changes. Put settings "
            "under changes."
        )
    if error["type"] == "missing":
        return f"{where}{inside} is missing."
    return (
        f"{where}{inside}: {message_of(error)}. The value was {quote(error['input'])}."
    )


@cache
def unused_table() -> list[dict[str, Any]]:
    """When which setting has no effect, and why: `no_effect` in the form's texts."""
    return [
        {
            "path": path,
            "when": {
                other: [
                    str(value)
                    if other in RECIPE_FACTS
                    else all_fields()[other].write(value)
                    for value in values
                ]
                for other, values in when.items()
            },
            "reason": reason,
        }
        for path, info in leaves(RunConfig)
        for reason, when in read_about(info).get("no_effect", {}).items()
    ]


def find_unused(
    texts: Mapping[str, str], facts: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings without effect in a form with these texts, and why."""
    everything = {**dict.fromkeys(RECIPE_FACTS, ""), **(facts or {}), **texts}

    def has_one_of(path: str, values: Sequence[str]) -> bool:
        if path in RECIPE_FACTS:
            return everything[path] in values
        field, text = all_fields()[path], everything[path]
        return any(field.is_same(text, value) for value in values)

    reasons: dict[str, str] = {}
    for unused in unused_table():
        if all(has_one_of(path, values) for path, values in unused["when"].items()):
            reasons.setdefault(unused["path"], unused["reason"])
    return reasons


def recipe_facts(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about a recipe that may make settings unused."""
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
    """Return the columns that the rows of a dataset need for its rules.

    >>> needed_columns({"rules": [{"kind": "code_tests"}]})
    ['tests']
    """
    columns: set[str] = set()
    for rule in recipe.get("rules", []):
        params = RULES[rule["kind"]].params_model.model_fields
        for name in (n for n in params if n.endswith("_column")):
            column = rule.get("params", {}).get(name, params[name].default)
            if column and name not in OPTIONAL_COLUMNS:
                columns.update(map(str.strip, str(column).split(",")))
    return sorted(columns)
