from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dashboard.runs.models import Run
from trainer.rewards.spec import Recipe, bound_tolerance, recipe_bounds

# The engine's penalty for length stands among the rules as what it took off.
PENALTIES = {"overlong": 1.0}
NOBODY_SAID = (
    "When this run was imported or opened, nobody said from which reward on a "
    "completion is right. Mean rewards and Completions by reward still tell."
)


def recipe_spec(run: Run, step: int) -> dict[str, Any]:
    """The rules of a step, from the run's own frozen configuration."""
    spec: dict[str, Any] = run.config["reward"]["recipe"]
    last = 0
    for phase in run.config.get("phases") or ():
        last += phase["num_steps"]
        if step <= last:
            changed: dict[str, Any] = phase.get("changes", {}).get("reward", {})
            return changed.get("recipe") or spec
    return spec


def all_rules(run: Run) -> list[dict[str, Any]]:
    """Of all phases, in their recipes' order."""
    phases = run.config.get("phases") or ()
    rewards = [run.config["reward"]]
    rewards += [phase.get("changes", {}).get("reward", {}) for phase in phases]
    recipes = [reward["recipe"] for reward in rewards if reward.get("recipe")]
    return [rule for spec in recipes for rule in spec["rules"]]


def rule_names(run: Run) -> list[str]:
    return list(dict.fromkeys(rule["name"] for rule in all_rules(run)))


def step_recipe(run: Run, step: int) -> Recipe | None:
    """None when a rule is no longer known."""
    try:
        return Recipe.model_validate(recipe_spec(run, step))
    except ValueError:
        return None


def rule_weights(run: Run, step: int) -> dict[str, float]:
    recipe = step_recipe(run, step)
    if recipe is not None:
        return PENALTIES | {r.name: r.weight_at(step) for r in recipe.rules}
    rules = recipe_spec(run, step)["rules"]
    return PENALTIES | {r["name"]: float(r.get("weight", 1.0)) for r in rules}


def right_reward(recipe: Recipe, step: int) -> float | None:
    """The reward from which a completion is right: the highest that there is.

    None where there is no highest.
    """
    highest = recipe_bounds(recipe, step=step)[1]
    return highest - bound_tolerance(highest) if math.isfinite(highest) else None


def right_from(run: Run, steps: Iterable[int]) -> dict[int, float | None]:
    """By step the reward from which a completion is right; None: nobody can tell."""
    found: dict[int, float | None] = {}
    if run.is_imported:
        return dict.fromkeys(steps, run.config["reward"]["right_from"])
    recipes: dict[int, Recipe | None] = {}
    highest: dict[tuple[int, tuple[float, ...]], float | None] = {}
    for step in steps:
        spec = recipe_spec(run, step)
        if id(spec) not in recipes:
            recipes[id(spec)] = step_recipe(run, step)
        recipe = recipes[id(spec)]
        if recipe is None:
            found[step] = None
            continue
        # A schedule gives each step weights of its own.
        weights = id(spec), tuple(rule.weight_at(step) for rule in recipe.rules)
        if weights not in highest:
            highest[weights] = right_reward(recipe, step)
        found[step] = highest[weights]
    return found


def why_nothing_is_right(run: Run, step: int) -> str:
    """Empty where there is a highest reward at this step."""
    if run.is_imported:
        return "" if run.config["reward"]["right_from"] is not None else NOBODY_SAID
    recipe = step_recipe(run, step)
    if recipe is None:
        return (
            "A rule of this run is not known any more, so nobody can tell which "
            "completions were right. Look at the run's Config for it."
        )
    if right_reward(recipe, step) is None:
        return (
            "The recipe of this run has no highest reward, so nobody can tell which "
            "completions were right. Mean rewards and Completions by reward still do."
        )
    return ""


def reward_bounds(run: Run, step: int) -> tuple[float, ...]:
    """Lowest and highest reward; empty when a rule is no longer known to say."""
    recipe = step_recipe(run, step)
    return () if recipe is None else recipe_bounds(recipe, step=step)
