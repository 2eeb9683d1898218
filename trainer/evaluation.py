"""Held-out evaluation: mean reward, pass@k and maj@k, each with its confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.config import RunConfig
from trainer.data import Prompt
from trainer.estimates import (
    Bools,
    Floats,
    majority_places,
    mean_interval,
    pass_at_k,
    reported_ks,
)
from trainer.parallel.world import ALONE, World
from trainer.rewards.rules.rightness import AnswerReader, answer_reader, votes_of
from trainer.rewards.scoring import is_right
from trainer.rewards.spec import recipe_bounds
from trainer.rewards.terms import AT_THE_END
from trainer.rollout.engine import Request, RolloutEngine, SamplingParams
from trainer.scoring import HERE, Scorer
from trainer.seeding import derive
from trainer.types import Group


def evaluate(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    config: RunConfig,
    *,
    name: str,
    world: World = ALONE,
    scorer: Scorer = HERE,
) -> dict[str, float | None]:
    """Sample each held-out prompt, each process its share, and measure what comes out.

    The seeds of sampling are the same at every step, so two evaluations differ by the
    policy and not by luck alone. Where weights follow a schedule, all are scored with
    those that it ends with, so that no change of the reward looks like one of the
    policy.
    """
    num_samples = config.evaluation.samples_per_prompt
    own = world.share(prompts)
    requests = [
        Request(
            token_ids=prompt.token_ids,
            seeds=tuple(
                derive(config.seed, "evaluate", prompt.index, k)
                for k in range(num_samples)
            ),
        )
        for prompt in own
    ]
    scoring = scorer.begin(own, config.reward, step=AT_THE_END)
    completions = engine.sample(
        requests,
        SamplingParams(
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.evaluation.temperature,
        ),
        on_group=scoring.add,
    )
    recipe = config.reward.recipe
    groups = world.join(scoring.finish(completions))
    measured = evaluation_metrics(
        groups,
        bounds=recipe_bounds(recipe, step=AT_THE_END),
        read_answer=answer_reader(recipe),
    )
    return {f"eval/{name}/{metric}": value for metric, value in measured.items()}


def evaluation_metrics(
    groups: Sequence[Group],
    *,
    bounds: tuple[float, float],
    read_answer: AnswerReader | None = None,
) -> dict[str, float | None]:
    """Mean reward, pass@k and maj@k over prompts, length, share cut short.

    A completion passes when its reward is the highest that the recipe gives. maj@k is
    the share of prompts where the most frequent of the first k answers passes. Beside
    each stand the ends of its 95 % confidence interval, /low and /high
    (`mean_interval`); the reward's is found on the scale of `bounds`.

    Args:
        groups: P prompts with n completions each.
        bounds: the recipe's lowest and highest reward.
        read_answer: finds a completion's answer; None: there is no majority.
    """
    num_samples = len(groups[0].completions)
    ks = reported_ks(num_samples)
    right = np.array(
        [
            [is_right(score.total, highest=bounds[1]) for score in group.scores]
            for group in groups
        ]
    )
    shares = {
        f"pass@{k}": column
        for k, column in zip(
            ks, pass_at_k(num_samples, right.sum(axis=1).tolist(), ks).T, strict=True
        )
    }
    if read_answer is not None:
        majorities = majority_is_right(groups, right, read_answer)
        shares |= {f"maj@{k}": majorities[:, k - 1] for k in ks}
    completions = [c for group in groups for c in group.completions]
    metrics = _mean_reward(groups, bounds=bounds)
    metrics["mean_length"] = _mean([c.num_tokens for c in completions])
    metrics["frac_truncated"] = _mean([c.end_reason == "length" for c in completions])
    values = np.stack(list(shares.values()), axis=1).astype(np.float64)
    low, high = mean_interval(values, num_samples=num_samples)
    for place, name in enumerate(shares):
        metrics[name] = float(values[:, place].mean())
        metrics[f"{name}/low"] = float(low[place])
        metrics[f"{name}/high"] = float(high[place])
    return metrics


def majority_is_right(
    groups: Sequence[Group], right: Bools, read_answer: AnswerReader
) -> Bools:
    """Whether the most frequent answer of the first k passes, [P, n] for k = 1 … n."""
    found = np.zeros_like(right)
    for row, group in enumerate(groups):
        texts = [completion.text for completion in group.completions]
        votes = votes_of(texts, right[row].tolist(), read_answer)
        for k, place in enumerate(majority_places(votes)):
            found[row, k] = place is not None and right[row, place]
    return found


def _mean_reward(
    groups: Sequence[Group], *, bounds: tuple[float, float]
) -> dict[str, float | None]:
    """The mean over prompts of their mean rewards; unscorable prompts are left out."""
    means = [_mean(group.scored_rewards) for group in groups if group.scored_rewards]
    if not means:
        return {"mean": None, "mean/low": None, "mean/high": None}
    lowest, highest = bounds
    width = highest - lowest or 1.0
    scaled: Floats = np.clip((np.array(means)[:, None] - lowest) / width, 0, 1)
    ends = mean_interval(scaled, num_samples=len(groups[0].completions))
    low, high = (float(lowest + width * end[0]) for end in ends)
    return {"mean": _mean(means), "mean/low": low, "mean/high": high}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
