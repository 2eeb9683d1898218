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


def rule_weights(run: Run, step: int) -> dict[str, float]:
    rules = recipe_spec(run, step)["rules"]
    return PENALTIES | {r["name"]: float(r.get("weight", 1.0)) for r in rules}


def reward_bounds(run: Run, step: int) -> tuple[float, ...]:
    """Lowest and highest reward; empty when a rule is no longer known to say."""
    try:
        return recipe_bounds(Recipe.model_validate(recipe_spec(run, step)))
    except ValueError:
        return ()
