"""Runs that differ in their seed, with curves that go up and scatter."""

import random
from typing import Any

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_config, make_run, make_steps


def make_seeds(
    team: Team,
    name: str,
    number: int,
    *,
    level: float = 0.5,
    like: Run | None = None,
    num_steps: int = 200,
    **parts: Any,
) -> list[Run]:
    """The first makes all steps, each further one ten less; `parts` of the config."""
    runs: list[Run] = []
    for seed in range(number):
        model = like or (runs[0] if runs else None)
        same = (
            {}
            if model is None
            else {
                "dataset_version": model.dataset_version,
                "recipe_version": model.recipe_version,
            }
        )
        config = make_config(seed=seed, **parts)
        run = make_run(team, f"{name}-{seed}", config=config, **same)
        make_steps(run, _curves(num_steps - 10 * seed, level, f"{name} {seed}"))
        runs.append(run)
    return runs


def _curves(num_steps: int, level: float, seed: str) -> dict[str, list[float | None]]:
    noise = random.Random(seed)
    end = level + noise.gauss(0, 0.08)
    steps = range(1, num_steps + 1)
    tokens, total = [], 0.0
    for _ in steps:
        total += noise.uniform(900, 1_100)
        tokens.append(round(total))
    return {
        "reward/mean": [
            end * (1 - 0.9 ** (step / 4)) + noise.gauss(0, 0.02) for step in steps
        ],
        "kl/mean": [0.001 * step for step in steps],
        "total/tokens": list(tokens),
        "total/completions": [16.0 * step for step in steps],
    }
