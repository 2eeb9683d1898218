from __future__ import annotations

from typing import Any

from dashboard.runs.models import Run
from trainer.rewards.spec import Recipe, recipe_bounds


def recipe_spec(run: Run) -> dict[str, Any]:
    """The rules a run was launched with, from its own frozen configuration."""
    spec: dict[str, Any] = run.config["reward"]["recipe"]
    return spec


def rule_weights(run: Run) -> dict[str, float]:
    return {
        rule["name"]: float(rule.get("weight", 1.0))
        for rule in recipe_spec(run)["rules"]
    }


def reward_bounds(run: Run) -> tuple[float, ...]:
    """Lowest and highest reward; empty when a rule is no longer known to say."""
    try:
        return recipe_bounds(Recipe.model_validate(recipe_spec(run)))
    except ValueError:
        return ()
