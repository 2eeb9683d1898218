"""Held-out evaluation: mean reward, pass@k and maj@k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from trainer.answers import AnswerReader, answer_reader
from trainer.config import RunConfig
from trainer.groups import Group, is_right, score_groups
from trainer.prompts import Prompt
from trainer.rewards.spec import recipe_bounds
from trainer.rollout.engine import Request, RolloutEngine, SamplingParams
from trainer.seeding import derive


def evaluate(
    engine: RolloutEngine, prompts: Sequence[Prompt], config: RunConfig, *, name: str
) -> dict[str, float | None]:
    """Sample each held-out prompt and measure what comes out.

    The seeds of sampling are the same at every step, so two evaluations differ by the
    policy and not by luck alone.
    """
    num_samples = config.evaluation.samples_per_prompt
    requests = [
        Request(
            prompt=prompt,
            seeds=tuple(
                derive(config.seed, "evaluate", prompt.index, k)
                for k in range(num_samples)
            ),
        )
        for prompt in prompts
    ]
    completions = engine.sample(
        requests,
        SamplingParams(
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.evaluation.temperature,
        ),
    )
    recipe = config.reward.recipe
    groups = score_groups(recipe, prompts, completions)
    highest = recipe_bounds(recipe)[1]
    measured = evaluation_metrics(
        groups, highest=highest, read_answer=answer_reader(recipe)
    )
    return {f"eval/{name}/{metric}": value for metric, value in measured.items()}


def evaluation_metrics(
    groups: Sequence[Group],
    *,
    highest: float,
    read_answer: AnswerReader | None = None,
) -> dict[str, float | None]:
    """Mean reward, pass@k and maj@k for k = 1, 2, 4 … n, length, share cut short.

    A completion passes when its reward is the highest that the recipe gives. maj@k is
    the share of prompts where the most frequent of the first k answers passes.
    """
    rewards = [reward for group in groups for reward in group.scored_rewards]
    completions = [c for group in groups for c in group.completions]
    metrics: dict[str, float | None] = {
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "mean_length": _mean([c.num_tokens for c in completions]),
        "frac_truncated": _mean([c.end_reason == "length" for c in completions]),
    }
    num_samples = len(groups[0].completions)
    right = [
        sum(is_right(score.total, highest=highest) for score in group.scores)
        for group in groups
    ]
    for k in powers_of_two(num_samples):
        metrics[f"pass@{k}"] = _mean([pass_at_k(num_samples, c, k) for c in right])
        if read_answer is not None and k > 1:
            metrics[f"maj@{k}"] = _mean(
                [majority_is_right(g, k, read_answer, highest=highest) for g in groups]
            )
    return metrics


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 … up to `limit`, and `limit` itself."""
    return sorted({2**p for p in range(limit.bit_length()) if 2**p <= limit} | {limit})


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that one of k completions is right: 1 - C(n-c, k) / C(n, k).

    Unbiased, from n samples of which c are right (arXiv:2107.03374, section 2.1).
    """
    if not 1 <= k <= num_samples or not 0 <= num_right <= num_samples:
        raise ValueError(
            f"pass@k needs 1 ≤ k ≤ n and 0 ≤ c ≤ n; got k={k}, n={num_samples}, "
            f"c={num_right}."
        )
    wrong = num_samples - num_right
    return 1.0 - math.comb(wrong, k) / math.comb(num_samples, k)


def majority_is_right(
    group: Group, k: int, read_answer: AnswerReader, *, highest: float
) -> bool:
    """Whether the most frequent answer of a group's first k completions passes."""
    answers = [read_answer(completion.text) for completion in group.completions[:k]]
    chosen = majority(answers)
    return chosen is not None and is_right(
        group.scores[answers.index(chosen)].total, highest=highest
    )


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer, the first of equals; None when there is none."""
    given = [answer for answer in answers if answer is not None]
    return Counter(given).most_common(1)[0][0] if given else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
