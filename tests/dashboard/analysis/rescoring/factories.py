"""Runs whose stored rewards are those of their recipe, and rescorings of them."""

import statistics
from collections.abc import Sequence
from typing import Any

from dashboard.accounts.models import Team
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.services import select_steps, start_rescoring
from dashboard.completions.models import Group
from dashboard.datasets.models import DatasetVersion
from dashboard.jobs.kinds import Context
from dashboard.jobs.runner import run as run_job
from dashboard.rewards.trial import as_sample
from dashboard.runs.models import Run
from tests.dashboard.analysis.probes.factories import make_version
from tests.dashboard.completions.factories import make_config, make_run
from tests.dashboard.completions.stored import store_completions
from tests.dashboard.jobs.working import take
from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.config import AdvantageConfig
from trainer.rewards.scoring import score_all, signal_of
from trainer.rewards.spec import Recipe

RIGHT = {"name": "right", "kind": "numeric_answer", "weight": 1.0}
SHORT = {
    "name": "short",
    "kind": "length",
    "weight": 0.5,
    "params": {"maximum": 4, "soft_edge": 12},
}
# Of row n: right, wrong, right but long, wrong and long.
TEXTS = ("{right}", "{wrong}", "it must be {right}", "it may well be {wrong}")


def make_scored_run(
    team: Team,
    *,
    num_steps: int = 3,
    num_prompts: int = 2,
    rules: Sequence[dict[str, Any]] = (RIGHT,),
    texts: Sequence[str] = TEXTS,
    version: DatasetVersion | None = None,
    **fields: Any,
) -> Run:
    version = version or make_version(team, 12, name=f"Sums {team.datasets.count()}")
    parts = fields.pop("parts", {})
    config = make_config(list(rules), **parts)
    run = make_run(
        team, dataset_version=version, config=config, last_step=num_steps, **fields
    )
    for step in range(1, num_steps + 1):
        for prompt in range(num_prompts):
            _add_group(run, step, prompt, texts)
    return run


def _add_group(run: Run, step: int, prompt: int, texts: Sequence[str]) -> Group:
    recipe = Recipe.model_validate(run.config["reward"]["recipe"])
    row = run.dataset_version.rows.get(position=prompt)
    values = [text.format(right=2 * prompt, wrong=2 * prompt + 7) for text in texts]
    scores = score_all(recipe, [as_sample(row, text) for text in values], step=step)
    rewards = [score.total for score in scores]
    known = [reward for reward in rewards if reward is not None]
    config = AdvantageConfig.model_validate(run.config["advantage"])
    if config.credit == "process":  # of steps, which these have none of
        config = config.model_copy(update={"credit": "outcome"})
    (advantages,) = group_advantages(reward_matrix([rewards]), config).tolist()
    group = Group.objects.create(
        run=run,
        step=step,
        prompt_index=prompt,
        attempt=1,
        seq=step,
        prompt=row.prompt,
        answer=row.answer,
        reward_mean=statistics.fmean(known) if known else None,
        reward_std=statistics.pstdev(known) if known else None,
        signal=signal_of(scores, recipe, step=step),
        rule_names=[rule.name for rule in recipe.rules],
    )
    found = [
        {
            "text": text,
            "num_tokens": len(text),
            "end_reason": "stop",
            "reward": score.total,
            "rule_scores": list(score.rules.values()),
            "advantage": advantage,
        }
        for text, score, advantage in zip(values, scores, advantages, strict=True)
    ]
    store_completions(group, found)
    return group


def start(run: Run, rules: Sequence[dict[str, Any]] = (), **given: Any) -> Rescoring:
    """Without rules: by each step's own recipe."""
    first, last = given.pop("first_step", None), given.pop("last_step", None)
    return start_rescoring(
        team=run.team,
        user=None,
        run=run,
        selection=select_steps(run, first, last, given.pop("every", 1)),
        recipe=Recipe.model_validate({"rules": list(rules)}) if rules else None,
        **given,
    )


def see_through(
    rescoring: Rescoring, *, beats: bool = False, **given: Any
) -> Rescoring:
    """What a worker does; the rescoring as it is then."""
    run_job(Context(take("rescoring"), **given), beats=beats)
    return Rescoring.objects.get(pk=rescoring.pk)
