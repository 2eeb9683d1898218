"""A probe of what a launch form asks for."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.accounts.models import Team, User
from dashboard.probes.models import Probe
from dashboard.probes.services import MAX_COMPLETIONS, draw_positions, start_probe
from dashboard.runs.launch.form import Launch

# As many prompts as a step takes, within what is quick.
FEWEST_PROMPTS, MOST_PROMPTS, MOST_SAMPLES = 16, 64, 16


def probe_launched(
    team: Team,
    user: User,
    launch: Launch,
    *,
    positions: Sequence[int] = (),
    num_prompts: int | None = None,
    num_samples: int | None = None,
    is_sample: bool = False,
) -> Probe:
    """Of these rows, or of so many drawn ones; ValueError as `start_probe`."""
    rollout = launch.config.stages[0].config.rollout
    if num_samples is None:
        num_samples = min(rollout.group_size, MOST_SAMPLES)
    if num_prompts is None:
        num_prompts = max(FEWEST_PROMPTS, min(rollout.prompts_per_step, MOST_PROMPTS))
        num_prompts = min(num_prompts, max(1, MAX_COMPLETIONS // num_samples))
    version, seed = launch.dataset_version, launch.config.seed
    return start_probe(
        team=team,
        user=user,
        config=launch.config,
        dataset_version=version,
        positions=list(positions) or draw_positions(version, num_prompts, seed=seed),
        num_samples=num_samples,
        recipe_version=launch.recipe_version,
        is_sample=is_sample,
    )
