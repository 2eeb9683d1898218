"""What one run's reward recipe has that the baseline's has not, rule by rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dashboard.insights.differences import flatten, rule_settings, whole_config
from dashboard.rewards.recipe_text import write_formula
from dashboard.runs.models import Run
from trainer.rewards.spec import Recipe

WHOLE = "how the rules combine"


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
            _changed(name, dict(_told(mine[name])), dict(_told(its[name])))
            for name in mine
            if name in its
        ),
        _changed(WHOLE, dict(flatten(ours)), dict(flatten(theirs))),
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


def _told(rule: dict[str, Any]) -> list[tuple[str, str]]:
    return list(rule_settings(rule, prefix=""))


def _one(kind: Literal["added", "removed"], rule: dict[str, Any]) -> Change:
    settings: list[tuple[str, str | None, str | None]] = [
        (key, None, value) if kind == "added" else (key, value, None)
        for key, value in _told(rule)
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
