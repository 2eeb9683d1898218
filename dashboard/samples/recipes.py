from __future__ import annotations

from typing import Any

from dashboard.runs.models import Run
from trainer.rewards.spec import Recipe, recipe_bounds

# The engine's penalty for length stands among the rules as what it took off.
PENALTIES = {"overlong": 1.0}


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


def rule_names(run: Run) -> list[str]:
    """Of all phases, in their recipes' order."""
    phases = run.config.get("phases") or ()
    rewards = [run.config["reward"]]
    rewards += [phase.get("changes", {}).get("reward", {}) for phase in phases]
    recipes = [reward["recipe"] for reward in rewards if reward.get("recipe")]
    return list(dict.fromkeys(r["name"] for spec in recipes for r in spec["rules"]))


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


def reward_bounds(run: Run, step: int) -> tuple[float, ...]:
    """Lowest and highest reward; empty when a rule is no longer known to say."""
    recipe = step_recipe(run, step)
    return () if recipe is None else recipe_bounds(recipe, step=step)
