"""Held-out evaluation: mean reward, pass@k and maj@k, with confidence intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from trainer.config import RunConfig
from trainer.data import Prompt
from trainer.parallel.world import ALONE, World
from trainer.rewards.rules.rightness import AnswerReader, votes_of
from trainer.rewards.scoring import (
    Correctness,
    add_usage,
    correctness_of,
    usage_metrics,
    without_special_tokens,
)
from trainer.rewards.spec import answer_reader, recipe_bounds
from trainer.rewards.terms import AT_THE_END
from trainer.rollout.engine import RolloutEngine, SamplingParams
from trainer.rollout.episodes import make_sampler
from trainer.scoring import HERE, Scorer
from trainer.seeding import derive
from trainer.types import Group

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
# Up to so many samples every k is reported, above them powers of two and n.
_EVERY_K = 16


def reported_ks(num_samples: int) -> list[int]:
    """Return the k of pass@k and maj@k: 1, 2, 3 … n, or 1, 2, 4 … n when n is large."""
    if num_samples <= _EVERY_K:
        return list(range(1, num_samples + 1))
    powers = [2**p for p in range(num_samples.bit_length()) if 2**p < num_samples]
    return [*powers, num_samples]


def pass_at_k(num_samples: int, num_right: Sequence[int], ks: Sequence[int]) -> Floats:
    """Return probability that one of k completions is correct, [P, K].

    1 - C(n-c, k) / C(n, k): unbiased, from n samples of which c are correct
    (arXiv:2107.03374, section 2.1). Computed as Π_{j<k} (n-c-j) / (n-j), without
    overflow or cancellation.

    Args:
        num_samples: n, of each prompt.
        num_right: c of each of P prompts.
        ks: K numbers.
    """
    right = np.asarray(num_right, dtype=np.int64)
    drawn = np.arange(num_samples)
    wrong_left = np.maximum(num_samples - right[:, None] - drawn, 0)
    all_wrong = np.cumprod(wrong_left / (num_samples - drawn), axis=1)
    chances: Floats = 1.0 - all_wrong[:, np.asarray(ks) - 1]
    return chances


def chance_of_signal(rewards: Sequence[Sequence[float]], *, group_size: int) -> Floats:
    """Return probability that a group of each prompt has two different rewards; [P].

    1 - Σ_v C(n_v, G) / C(n, G) over the values v that n_v of a prompt's n rewards have,
    unbiased as pass@k is. Where rewards are right or wrong it estimates
    1 - p^G - (1-p)^G. A group larger than the sample takes (n_v / n)^G in its place,
    which by Jensen's inequality makes the chance rather too small than too large. 0
    where fewer than two completions have a reward.

    >>> chance_of_signal([[1.0, 0.0, 0.0]], group_size=2)  # 2 of the 3 pairs differ
    array([0.66666667])
    """
    chances = np.zeros(len(rewards))
    for index, values in enumerate(rewards):
        n = len(values)
        if min(n, group_size) < 2:
            continue
        counts = Counter(values).values()
        if group_size <= n:
            alike = sum(math.comb(c, group_size) for c in counts)
            chances[index] = 1 - alike / math.comb(n, group_size)
        else:
            chances[index] = 1 - sum((c / n) ** group_size for c in counts)
    return chances


def majority_places(answers: Sequence[str | None]) -> list[int | None]:
    """Return for k = 1 … n the index of the most frequent of the first k answers.

    The first of equally frequent answers wins; None while there is no answer.

    >>> majority_places([None, "a", "b", "b"])
    [None, 1, 1, 2]
    """
    first: dict[str, int] = {}
    count: dict[str, int] = {}
    leader: str | None = None
    places: list[int | None] = []
    for index, answer in enumerate(answers):
        if answer is not None:
            first.setdefault(answer, index)
            count[answer] = count.get(answer, 0) + 1
            # only the answer just counted can have caught up
            if leader is None or (count[answer], -first[answer]) > (
                count[leader],
                -first[leader],
            ):
                leader = answer
        places.append(None if leader is None else first[leader])
    return places


def mean_interval(values: Floats, *, num_samples: int) -> tuple[Floats, Floats]:
    """Return 95 % confidence intervals of means over prompts, [M] and [M].

    Wilson's score interval (1927) with the effective number of observations that the
    variance between prompts implies, m·(1-m)·P / s² (Korn, Graubard 1998), and
    Student's quantile for P-1 degrees of freedom. It covers both the draw of the
    prompts and the sampling of the completions.

    Not a bootstrap, which has width 0 if all prompts fail or all pass, like any
    interval from s alone: at 64 prompts of which 2 % pass, its 95 % intervals cover the
    true value in 75 % of cases, these in 96 %. It is deterministic, so a resumed run
    reports the same.

    Args:
        values: [P, M], P prompts, each of M values between 0 and 1.
        num_samples: completions of each prompt; their total bounds the effective number
            of observations.
    """
    num_prompts = len(values)
    mean = values.mean(axis=0)
    full = mean * (1 - mean)
    spread = values.var(axis=0, ddof=1) if num_prompts > 1 else np.zeros_like(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.where(spread > 0, full * num_prompts / spread, num_prompts)
    count = np.clip(count, 1, num_prompts * num_samples)
    z = _student_quantile(max(num_prompts - 1, 1))
    middle = (mean + z * z / (2 * count)) / (1 + z * z / count)
    reach = np.sqrt(full / count + z * z / (4 * count**2)) * z / (1 + z * z / count)
    return np.maximum(middle - reach, 0.0), np.minimum(middle + reach, 1.0)


def _student_quantile(degrees: int) -> float:
    """Student's t at 97.5 %, as the normal quantile and its corrections in 1 / ν.

    Abramowitz, Stegun 1964, 26.7.5: off by 0.02 at ν = 3, by 0.0005 at ν = 8.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(
        term / degrees**power for power, term in enumerate(terms, start=1)
    )


def evaluate(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    config: RunConfig,
    *,
    name: str,
    world: World = ALONE,
    scorer: Scorer = HERE,
) -> dict[str, float | None]:
    """Sample each held-out prompt, each process its share, and compute the metrics.

    The sampling seeds are the same at every step, so evaluations differ only by the
    policy. Scheduled rule weights have their final values, so that a change of the
    reward does not look like one of the policy.
    """
    num_samples = config.evaluation.samples_per_prompt
    own = world.share(prompts)
    seeds = [
        [derive(config.seed, "evaluate", prompt.index, k) for k in range(num_samples)]
        for prompt in own
    ]
    scoring = scorer.begin(own, config.reward, step=AT_THE_END)
    completions = make_sampler(engine, config).play(
        own,
        seeds,
        SamplingParams(
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.evaluation.temperature,
            stop=tuple(config.rollout.stop),
        ),
        on_group=scoring.add,
    )
    recipe = config.reward.recipe
    groups = world.join(scoring.finish(completions))
    measured = evaluation_metrics(
        groups,
        bounds=recipe_bounds(recipe, step=AT_THE_END),
        correctness=correctness_of(recipe, step=AT_THE_END),
        read_answer=answer_reader(recipe),
    )
    measured |= usage_metrics(add_usage(s for group in groups for s in group.scores))
    return {f"eval/{name}/{metric}": value for metric, value in measured.items()}


def evaluation_metrics(
    groups: Sequence[Group],
    *,
    bounds: tuple[float, float],
    correctness: Correctness,
    read_answer: AnswerReader | None = None,
) -> dict[str, float | None]:
    """Return mean reward, pass@k and maj@k over prompts, length, truncated share.

    A completion passes when it is correct. maj@k is the share of prompts where the most
    frequent of the first k answers passes. Each has its 95 % confidence interval as
    /low and /high (`mean_interval`); that of the reward is computed on the scale of
    `bounds`.

    Args:
        groups: P prompts with n completions each.
        bounds: the recipe's lowest and highest reward.
        correctness: the recipe's definition of a correct completion.
        read_answer: finds a completion's answer; None: there is no majority.
    """
    num_samples = len(groups[0].completions)
    ks = reported_ks(num_samples)
    right = np.array(
        [
            [correctness.holds(score.total, score.rules) for score in group.scores]
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
    metrics["mean_length"] = _mean([c.num_policy_tokens for c in completions])
    metrics["frac_truncated"] = _mean([c.end_reason == "length" for c in completions])
    if any(len(completion.turns) > 1 for completion in completions):
        metrics["mean_turns"] = _mean([len(c.policy_turns) for c in completions])
    values = np.stack(list(shares.values()), axis=1).astype(np.float64)
    metrics |= _rule_scores(groups)
    low, high = mean_interval(values, num_samples=num_samples)
    for index, name in enumerate(shares):
        metrics[name] = float(values[:, index].mean())
        metrics[f"{name}/low"] = float(low[index])
        metrics[f"{name}/high"] = float(high[index])
    return metrics


def _rule_scores(groups: Sequence[Group]) -> dict[str, float | None]:
    """Return the mean score of each of several rules, before weights."""
    scores: dict[str, list[float | None]] = {}
    for group in groups:
        for score in group.scores:
            for rule, value in score.rules.items():
                scores.setdefault(rule, []).append(value)
    return {
        f"rule/{rule}": _mean(known) if known else None
        for rule, values in scores.items()
        if len(scores) > 1
        for known in [[value for value in values if value is not None]]
    }


def majority_is_right(
    groups: Sequence[Group], right: Bools, read_answer: AnswerReader
) -> Bools:
    """Return whether the most frequent answer of the first k passes, [P, n] for k = 1 …
    n.
    """
    is_right = np.zeros_like(right)
    for row, group in enumerate(groups):
        special = group.prompt.special_tokens
        texts = [
            group.prompt.begun + without_special_tokens(completion.policy_text, special)
            for completion in group.completions
        ]
        votes = votes_of(texts, right[row].tolist(), read_answer)
        for k, index in enumerate(majority_places(votes)):
            is_right[row, k] = index is not None and right[row, index]
    return is_right


def _mean_reward(
    groups: Sequence[Group], *, bounds: tuple[float, float]
) -> dict[str, float | None]:
    """Return the mean over prompts of their mean rewards; unscorable prompts are left
    out.
    """
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
