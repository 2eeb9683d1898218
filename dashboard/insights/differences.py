"""The settings of several runs side by side, and in which of them they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.runs.config.snapshot import (
    flatten_config,
    flatten_rule,
    flatten_tree,
    told_settings,
    write_setting,
)
from dashboard.runs.models import Run
from trainer.config import RunConfig

ABSENT = None
MAX_LISTED = 5  # values of a set


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
    """A value a set of runs, by their places; several values are listed."""
    return [
        Setting(
            key=setting.key,
            values=[_join([setting.values[i] for i in places]) for places in sets],
            varies=any(len({setting.values[i] for i in p}) > 1 for p in sets),
        )
        for setting in settings
    ]


def _join(values: Sequence[str | None]) -> str | None:
    told = list(dict.fromkeys(values))
    if told == [ABSENT]:
        return ABSENT
    words = ["absent" if value is ABSENT else value for value in told[:MAX_LISTED]]
    rest = len(told) - len(words)
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
        yield "trained by" if run.is_outside else "imported from", run.imported_from
    if run.dataset_version:
        yield "dataset", str(run.dataset_version)
    frozen = set()
    for one in run.evaluation_sets.all():
        frozen.add(f"evaluation.sets.{one.name}")
        yield f"eval.{one.name}", f"{one.dataset_version}, {one.num_rows:,} rows"
    if run.is_outside:
        yield from _told_settings(run)
    if run.is_imported:
        return  # what else it was trained with is not known
    yield "recipe", str(run.recipe_version)
    for key, value in flatten_config(whole_config(run.config)):
        if key not in frozen:
            yield key, write_setting(value)


def _told_settings(run: Run) -> Iterator[tuple[str, str]]:
    """Of an outside run: what its trainer told, by its own names."""
    for rule in run.config["reward"]["recipe"]["rules"]:
        yield f"rules.{rule['name']}.weight", write_setting(rule["weight"])
    for key, value in told_settings(run.config):
        yield f"settings.{key}", write_setting(value)


def whole_config(config: dict[str, Any]) -> dict[str, Any]:
    """With today's defaults for what the run did not set, where it still validates."""
    try:
        return RunConfig.model_validate(config).model_dump(mode="json")
    except ValueError:
        copy: dict[str, Any] = json.loads(json.dumps(config))
        return copy


def rule_settings(
    rule: dict[str, Any], *, prefix: str | None = None
) -> Iterator[tuple[str, str]]:
    for key, value in flatten_rule(rule, prefix=prefix):
        yield key, write_setting(value)


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in flatten_tree(tree, prefix):
        yield key, write_setting(value)
