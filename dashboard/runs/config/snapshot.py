"""A run's config: its settings by part and by key, as files, its learning rate.

Comparisons and the run table use keys such as optim.optimizer or rules.<name>.weight.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dashboard.project.schema_forms import write_number
from dashboard.rewards.recipe_text import write_formula
from dashboard.runs.config.fields import part_title
from dashboard.runs.config.toml import write_toml
from dashboard.runs.models import Run
from dashboard.runs.queries import ROWS, eval_rows, list_evaluation_sets
from trainer.config import (
    Phase,
    PhaseConfig,
    RunConfig,
    learning_rate,
    parts_of,
    read_about,
)
from trainer.rewards.spec import Recipe

# Copies of the dataset's rows in the run's folder.
LEFT_OUT = {"data.rows"}
# What a rule has besides its parameters.
OF_A_RULE = ("kind", "weight", "schedule", "clip", "only_if")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    path: str  # optim.learning_rate
    title: str
    value: str
    short: str  # on one line: of a recipe its formula
    default: str | None  # None: it is required
    differs: bool
    unit: str
    help: str

    @property
    def is_long(self) -> bool:
        return "\n" in self.value or len(self.value) > 60

    def has(self, text: str) -> bool:
        """Tell whether all words are in its title, path, value or help."""
        said = f"{self.title} {self.path} {self.value} {self.help}".lower()
        return all(word in said for word in text.lower().split())


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    title: str
    settings: list[Setting]


def compare_with_defaults(config: RunConfig) -> list[Part]:
    values = {name: getattr(config, name) for name in RunConfig.model_fields}
    parts = {n: value for n, value in values.items() if isinstance(value, BaseModel)}
    own = [name for name in values if name not in parts]
    return [Part(title="Run", settings=_settings("", config, own))] + [
        Part(
            title=part_title(name),
            settings=_settings(f"{name}.", part, list(type(part).model_fields)),
        )
        for name, part in parts.items()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSettings:
    phase: PhaseConfig
    settings: list[Setting]  # that differ from those of the run


def list_phases(config: RunConfig) -> list[PhaseSettings]:
    """List the phases with their settings; none where a run has one phase."""
    return [
        PhaseSettings(
            phase=own,
            settings=[
                setting
                for part, names in _in_order(phase)
                for setting in _settings(f"{part}.", getattr(own.config, part), names)
            ],
        )
        for phase, own in zip(config.phases, config.phase_configs, strict=False)
    ]


def _in_order(phase: Phase) -> Iterator[tuple[str, list[str]]]:
    """Return what it changes, as the config lists it; jsonb orders keys by length."""
    for part, kind in parts_of(RunConfig).items():
        changed = phase.changes.get(part, {})
        yield part, [name for name in kind.model_fields if name in changed]


def _settings(prefix: str, part: BaseModel, names: list[str]) -> list[Setting]:
    fields = type(part).model_fields
    return [_setting(prefix + n, fields[n], getattr(part, n)) for n in names]


def _setting(path: str, field: FieldInfo, value: object) -> Setting:
    must_be_given = field.default is PydanticUndefined
    name = path.rpartition(".")[2]
    text = write_setting(value)
    return Setting(
        path=path,
        title=field.title or name.replace("_", " ").capitalize(),
        value=text,
        short=write_formula(value) if isinstance(value, Recipe) else text,
        default=None if must_be_given else write_setting(field.default),
        differs=must_be_given or value != field.default,
        unit=read_about(field).get("unit", ""),
        help=field.description or "",
    )


def write_setting(value: object) -> str:
    """Write a value of the tree as pages show it."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return write_number(value)
        case BaseModel():
            return json.dumps(
                value.model_dump(mode="json"), indent=2, ensure_ascii=False
            )
        case list() | tuple() | dict() if not value:
            return "none"
        case tuple() if isinstance(value[0], Phase):
            return _write_phases(phase.model_dump() for phase in value)
        case tuple() if isinstance(value[0], BaseModel):
            return json.dumps(
                [part.model_dump(mode="json") for part in value],
                indent=2,
                ensure_ascii=False,
            )
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def write_named(key: str, value: object) -> str:
    """Write a setting of Cohort's own, by its key."""
    if key == "phases" and isinstance(value, list) and value:
        return _write_phases(value)
    return write_setting(value)


def _write_phases(phases: Iterable[Any]) -> str:
    return ", ".join(f"{p['name']} {p['num_steps']:,} steps" for p in phases)


def _write_toml(run: Run, config: RunConfig) -> str:
    """Write the settings, after comments on the files that they name."""
    assert run.dataset_version, "launched"
    files = [(ROWS, run.dataset_version, run.dataset_version.num_rows)]
    files += [
        (eval_rows(chosen.name), chosen.dataset_version, chosen.num_rows)
        for chosen in list_evaluation_sets(run)
    ]
    lines = [
        f"# {file}: {' '.join(str(version).split())}, {num_rows:,} of "
        f"{version.num_rows:,} rows, SHA-256 of all {version.content_sha256}\n"
        for file, version, num_rows in files
    ]
    return "".join(lines) + "\n" + write_toml(config)


WRITERS: dict[str, Callable[[Run, RunConfig], str]] = {
    "toml": _write_toml,
    "json": lambda _run, config: config.model_dump_json(indent=2) + "\n",
}  # for `python -m trainer run`


def flatten_config(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Recipe, rules, the rest, what phases change; each value as the config has it."""
    reward = dict(config.get("reward", {}))
    recipe = reward.pop("recipe", {})
    yield from flatten_tree(
        {k: v for k, v in recipe.items() if k != "rules"}, "recipe."
    )
    for rule in recipe.get("rules", []):
        yield from flatten_rule(rule)
    yield from flatten_tree({**config, "reward": reward})
    phases = config.get("phases") or ()
    for name, phase in zip(name_phases(phases), phases, strict=True):
        for key, value in flatten_config(phase.get("changes") or {}):
            yield f"phases.{name}.{key}", value


def name_phases(phases: Sequence[dict[str, Any]]) -> list[str]:
    """List their names; one that comes again has a number, which no name can have.

    >>> name_phases([{"name": "sft"}, {"name": "rl"}, {"name": "sft"}])
    ['sft', 'rl', 'sft#2']
    """
    times: Counter[str] = Counter()
    names = []
    for phase in phases:
        times[phase["name"]] += 1
        number = times[phase["name"]]
        names.append(phase["name"] if number == 1 else f"{phase['name']}#{number}")
    return names


def flatten_rule(
    rule: dict[str, Any], *, prefix: str | None = None
) -> Iterator[tuple[str, Any]]:
    prefix = f"rules.{rule['name']}." if prefix is None else prefix
    yield f"{prefix}kind", rule.get("kind")
    yield f"{prefix}weight", rule.get("weight", 1.0)
    for name in ("schedule", "clip", "only_if"):
        if name in rule:
            yield from flatten_tree({name: rule[name]}, prefix)
    yield from flatten_tree(rule.get("params") or {}, prefix)


def flatten_tree(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from flatten_tree(value, f"{key}.")
        elif key not in LEFT_OUT:
            yield key, value


def reported_settings(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the settings that an external trainer reported, by name.

    jsonb stores the keys of an object by length.

    >>> settings = {"fp16": 1, "beta": 2, "a": {"seed": 3, "bf": 4}}
    >>> reported_settings({"settings": settings})
    [('a.bf', 4), ('a.seed', 3), ('beta', 2), ('fp16', 1)]
    """
    return sorted(
        flatten_tree(config.get("settings", {})),
        key=lambda setting: setting[0].split("."),
    )


def json_path(key: str) -> str:
    """Return the PostgreSQL JSON path of the setting in a config.

    >>> json_path("optim.learning_rate")
    '$."optim"."learning_rate"'
    """
    tree, parts = "$", key.split(".")
    if parts[0] == "phases" and len(parts) > 2:
        tree = f'$."phases"[*] ? (@."name" == {_name(parts[1])})."changes"'
        parts = parts[2:]
    if parts[0] == "recipe":
        parts = ["reward", *parts]
    if parts[0] != "rules" or len(parts) < 3:
        return tree + "".join(f".{_name(part)}" for part in parts)
    own = parts[2:] if parts[2] in OF_A_RULE else ["params", *parts[2:]]
    rule = f'{tree}."reward"."recipe"."rules"[*] ? (@."name" == {_name(parts[1])})'
    return rule + "".join(f".{_name(part)}" for part in own)


def _name(part: str) -> str:
    return json.dumps(part)


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate of a step, before and after an extension."""

    step: int
    before: float | None  # None: the run had no such step
    after: float


def rate_at(config: RunConfig, step: int) -> float | None:
    """Return the learning rate of a step; None past the run's end."""
    for phase in config.phase_configs:
        if phase.first_step <= step <= phase.last_step:
            return learning_rate(step - phase.first_step + 1, phase.config.optim)
    return None


def compare_rates(before: RunConfig, after: RunConfig, *, first: int) -> list[Rate]:
    """Compare an extended run's rates at step `first`, half way and at both ends."""
    end = after.optim.num_steps
    return [
        Rate(step, rate_at(before, step), rate)
        for step in sorted({first, (first + end) // 2, before.optim.num_steps, end})
        if first <= step <= end and (rate := rate_at(after, step)) is not None
    ]
