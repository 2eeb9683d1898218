"""A run's settings under one name each: optim.optimizer, rules.<name>.weight, …

Comparisons lay them side by side, and the run list filters, sorts and groups by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# Frozen copies inside the run's folder: the rows of the datasets say what is in them.
LEFT_OUT = {"data.rows"}
# What a rule has beside its parameters.
OF_A_RULE = ("kind", "weight", "schedule", "clip", "only_if")


def flatten_config(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Recipe, rules, then the rest, each value as the config has it."""
    reward = dict(config.get("reward", {}))
    recipe = reward.pop("recipe", {})
    yield from flatten_tree(
        {k: v for k, v in recipe.items() if k != "rules"}, "recipe."
    )
    for rule in recipe.get("rules", []):
        yield from flatten_rule(rule)
    yield from flatten_tree({**config, "reward": reward})


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


def told_settings(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Of an outside run: what its trainer told, by name.

    The database keeps the keys of an object by their length.

    >>> told_settings({"settings": {"fp16": 1, "beta": 2, "a": {"seed": 3, "bf": 4}}})
    [('a.bf', 4), ('a.seed', 3), ('beta', 2), ('fp16', 1)]
    """
    told = flatten_tree(config.get("settings", {}))
    return sorted(told, key=lambda setting: setting[0].split("."))


def json_path(key: str) -> str:
    """Where PostgreSQL finds the setting in a config.

    >>> json_path("optim.learning_rate")
    '$."optim"."learning_rate"'
    """
    parts = key.split(".")
    if parts[0] == "recipe":
        parts = ["reward", *parts]
    if parts[0] != "rules" or len(parts) < 3:
        return "$" + "".join(f".{_name(part)}" for part in parts)
    own = parts[2:] if parts[2] in OF_A_RULE else ["params", *parts[2:]]
    rule = f'$."reward"."recipe"."rules"[*] ? (@."name" == {_name(parts[1])})'
    return rule + "".join(f".{_name(part)}" for part in own)


def _name(part: str) -> str:
    return json.dumps(part)
