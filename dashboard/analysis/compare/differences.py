"""In what runs differ: settings, reward recipes, and completions of one prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db.models import F
from django.db.models.functions import Abs

from dashboard.rewards.recipe_text import write_formula
from dashboard.runs.config.snapshot import (
    flatten_config,
    flatten_rule,
    flatten_tree,
    reported_settings,
    write_setting,
)
from dashboard.runs.models import Run
from dashboard.samples.models import Completion, Group
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe

ABSENT = None
MAX_LISTED = 5  # values of a set
WHOLE = "combination of the rules"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    key: str
    values: list[str | None]  # one per run; None: this run has no such setting
    varies: bool = False  # within a set of runs, when these are of sets

    @property
    def differs(self) -> bool:
        return self.varies or any(value != self.values[0] for value in self.values)

    @property
    def part(self) -> str:
        return _part(self.key)

    @property
    def cells(self) -> list[tuple[str | None, bool]]:
        """Each value, and whether it differs from the baseline's."""
        return [(value, value != self.values[0]) for value in self.values]


def join_settings(
    settings: Iterable[Setting], sets: Sequence[Sequence[int]]
) -> list[Setting]:
    """A value a set of runs, by their indices; several values are listed."""
    return [
        Setting(
            key=setting.key,
            values=[_join([setting.values[i] for i in indices]) for indices in sets],
            varies=any(len({setting.values[i] for i in p}) > 1 for p in sets),
        )
        for setting in settings
    ]


def _join(values: Sequence[str | None]) -> str | None:
    distinct = list(dict.fromkeys(values))
    if distinct == [ABSENT]:
        return ABSENT
    words = ["absent" if value is ABSENT else value for value in distinct[:MAX_LISTED]]
    rest = len(distinct) - len(words)
    return ", ".join(words) + (f" and {rest} more" if rest else "")


def compare_settings(runs: Sequence[Run]) -> list[Setting]:
    flat = [dict(_settings(run)) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    return [
        Setting(key=key, values=[settings.get(key, ABSENT) for settings in flat])
        for key in _grouped(keys)
    ]


def _part(key: str) -> str:
    head, dot, _ = key.partition(".")
    return head if dot else "run"


def _grouped(keys: Iterable[str]) -> list[str]:
    """Keys of one part together, parts in the order they first appear."""
    parts = list(dict.fromkeys(map(_part, keys)))
    return sorted(keys, key=lambda key: parts.index(_part(key)))


def _settings(run: Run) -> Iterator[tuple[str, str]]:
    yield "model", run.model_label
    if run.is_imported:
        yield "trained by" if run.is_external else "imported from", run.imported_from
    if run.dataset_version:
        yield "dataset", str(run.dataset_version)
    frozen = set()
    for one in run.evaluation_sets.all():
        frozen.add(f"evaluation.sets.{one.name}")
        yield f"eval.{one.name}", f"{one.dataset_version}, {one.num_rows:,} rows"
    if run.is_external:
        yield from _reported_settings(run)
    if run.is_imported:
        return  # its other settings are unknown
    yield "recipe", str(run.recipe_version)
    for key, value in flatten_config(whole_config(run.config)):
        if key not in frozen:
            yield key, write_setting(value)


def _reported_settings(run: Run) -> Iterator[tuple[str, str]]:
    """Of an outside run: the settings that its trainer sent, by its own names."""
    for rule in run.config["reward"]["recipe"]["rules"]:
        yield f"rules.{rule['name']}.weight", write_setting(rule["weight"])
    for key, value in reported_settings(run.config):
        yield f"settings.{key}", write_setting(value)


def whole_config(config: dict[str, Any]) -> dict[str, Any]:
    """With today's defaults for what the run did not set, where it still validates."""
    try:
        return RunConfig.model_validate(config).model_dump(mode="json")
    except ValueError:
        copy: dict[str, Any] = json.loads(json.dumps(config))
        return copy


# One prompt as several runs answered it, each at the step nearest to the wanted.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAnswer:
    run: Run
    group: Group | None
    best: Completion | None
    reason: str  # why there is no group


def find_answers(runs: Sequence[Run], prompt: int, step: int | None) -> list[RunAnswer]:
    """Two queries per run with the baseline's dataset version."""
    return [_find(run, runs[0], prompt, step) for run in runs]


def _find(run: Run, baseline: Run, prompt: int, step: int | None) -> RunAnswer:
    if run.dataset_version_id != baseline.dataset_version_id:
        reason = (
            "This run was imported without prompts."
            if run.dataset_version is None
            else (
                f"This run uses {run.dataset_version} and the baseline "
                f"{baseline.dataset_version}, so prompt {prompt} is a different "
                "prompt."
            )
        )
        return RunAnswer(run=run, group=None, best=None, reason=reason)
    group = _nearest(run, prompt, run.num_steps if step is None else step)
    if group is None:
        reason = f"This run has not sampled prompt {prompt}."
        return RunAnswer(run=run, group=None, best=None, reason=reason)
    return RunAnswer(run=run, group=group, best=_best(group), reason="")


def _nearest(run: Run, prompt: int, step: int) -> Group | None:
    groups = Group.objects.current().filter(run=run, prompt_index=prompt)
    nearest = groups.order_by(Abs(F("step") - step), "-step")
    return nearest.prefetch_related("packed_completions").first()


def _best(group: Group) -> Completion | None:
    """The first of those with the highest reward."""
    return max(
        group.completions,
        key=lambda each: (each.reward is not None, each.reward or 0.0),
        default=None,
    )


# Rules that a recipe has and the baseline's has not.


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    kind: Literal["added", "removed", "changed"]
    name: str
    # (setting, the baseline's value, this one's); None: it has no such setting.
    settings: list[tuple[str, str | None, str | None]] = field(default_factory=list)


def find_changes(base: Run, other: Run) -> list[Change]:
    """Rules are the same by their names; their order changes nothing."""
    ours, theirs = _recipe(base), _recipe(other)
    mine = {rule["name"]: rule for rule in ours.pop("rules", [])}
    its = {rule["name"]: rule for rule in theirs.pop("rules", [])}
    found = [
        *(_one("removed", mine[name]) for name in mine if name not in its),
        *(_one("added", its[name]) for name in its if name not in mine),
        *(
            _changed(name, _rule_settings(mine[name]), _rule_settings(its[name]))
            for name in mine
            if name in its
        ),
        _changed(WHOLE, _written(flatten_tree(ours)), _written(flatten_tree(theirs))),
    ]
    return [change for change in found if change is not None]


def formula_of(run: Run) -> str:
    """On one line; empty where today's rules do not read it."""
    try:
        return write_formula(Recipe.model_validate(run.config["reward"]["recipe"]))
    except (KeyError, ValueError):
        return ""


def _recipe(run: Run) -> dict[str, Any]:
    recipe: dict[str, Any] = (
        whole_config(run.config).get("reward", {}).get("recipe", {})
    )
    return dict(recipe)


def _rule_settings(rule: dict[str, Any]) -> dict[str, str]:
    return _written(flatten_rule(rule, prefix=""))


def _written(settings: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {key: write_setting(value) for key, value in settings}


def _one(kind: Literal["added", "removed"], rule: dict[str, Any]) -> Change:
    settings: list[tuple[str, str | None, str | None]] = [
        (key, None, value) if kind == "added" else (key, value, None)
        for key, value in _rule_settings(rule).items()
    ]
    return Change(kind=kind, name=rule["name"], settings=settings)


def _changed(name: str, ours: dict[str, str], theirs: dict[str, str]) -> Change | None:
    keys = dict.fromkeys([*ours, *theirs])
    settings = [
        (key, ours.get(key), theirs.get(key))
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]
    return Change(kind="changed", name=name, settings=settings) if settings else None
