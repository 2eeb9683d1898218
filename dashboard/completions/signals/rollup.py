"""One step's groups and times as the packed columns of a StepRollup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dashboard.completions.signals.composition import Composition
from dashboard.completions.signals.pass_at_k import majority_shares
from dashboard.completions.signals.records import (
    GROUP,
    MAJORITY,
    MAX_K,
    PASSES,
    PHASES,
    QUANTILE,
    QUANTILES,
    RULE,
    RULE_HEAD,
    SECONDS,
    SIGNALS,
    TIMINGS,
    Numbers,
    StepGroup,
    count_bins,
)
from dashboard.completions.signals.rule_shares import share
from dashboard.runs.charts.chart import clip, clip_all
from trainer.rewards.rules.rightness import AnswerReader, votes_of
from trainer.rewards.scoring import Correctness

NAME_LENGTH = 40

Outcomes = Sequence[Sequence[tuple[str, bool]]]  # one list a group


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollup:
    """The columns of a StepRollup, in its order."""

    groups: bytes
    reward_quantiles: bytes
    reward_histogram: bytes
    advantage_quantiles: bytes
    advantage_histogram: bytes
    rule_names: list[str]
    rules: bytes
    anatomy: bytes
    passes: bytes
    majorities: bytes


def roll_up(
    groups: Sequence[StepGroup],
    metrics: Mapping[str, float | None],
    composition: Composition,
    step: int,
) -> Rollup:
    # Numbers too large for a sum of squares are the run's trouble, not the rollup's.
    with np.errstate(over="ignore", invalid="ignore"):
        rewards = _finite(chain.from_iterable(g.rewards for g in groups))
        trained = [group for group in groups if group.is_trained]
        advantages = _finite(chain.from_iterable(g.advantages for g in trained))
        names = list(
            dict.fromkeys(n for g in groups for scored in g.rules for n in scored)
        )
        outcomes = _outcomes(groups, composition.correctness_at(step))
        counted = [
            (len(outcome), sum(right for _, right in outcome)) for outcome in outcomes
        ]
        records = np.array(
            [
                (
                    step,
                    group.prompt_index,
                    math.nan if group.reward_mean is None else clip(group.reward_mean),
                    math.nan if group.reward_std is None else clip(group.reward_std),
                    len(group.rewards),
                    SIGNALS.index(group.signal),
                    group.is_trained,
                )
                for group in groups
            ],
            GROUP,
        )
        return Rollup(
            groups=records.tobytes(),
            reward_quantiles=_quantiles(rewards),
            reward_histogram=count_bins(rewards).tobytes(),
            advantage_quantiles=_quantiles(advantages),
            advantage_histogram=count_bins(advantages).tobytes(),
            rule_names=[name[:NAME_LENGTH] for name in names],
            rules=_rules(groups, names, composition, step) if groups else b"",
            anatomy=np.array(step_timing(groups, metrics), SECONDS).tobytes(),
            passes=np.array(counted, PASSES).tobytes(),
            majorities=_majorities(outcomes, composition.read_answer),
        )


def _finite(values: Iterable[float | None]) -> Numbers:
    numbers = clip_all(np.array(list(values), dtype=np.float64))
    return numbers[np.isfinite(numbers)]


def _outcomes(groups: Sequence[StepGroup], correctness: Correctness) -> Outcomes:
    """Text and correctness of completions with a reward; none, if it is unknown."""
    if not correctness.is_known:
        return [[] for _ in groups]
    return [
        [
            (text, correctness.holds(reward, scores))
            for text, reward, scores in zip(
                group.texts, group.rewards, group.rules, strict=True
            )
            if reward is not None
        ]
        for group in groups
    ]


def _majorities(outcomes: Outcomes, read: AnswerReader | None) -> bytes:
    if read is None:
        return np.zeros(1, MAJORITY).tobytes()
    nums = np.zeros(MAX_K, np.int64)
    sums = np.zeros(MAX_K)
    for scored in outcomes:
        shares = _majority_shares(scored, read)[:MAX_K]
        nums[: len(shares)] += 1
        sums[: len(shares)] += shares
    records = np.zeros(np.count_nonzero(nums), MAJORITY)
    records["k"] = np.arange(1, len(records) + 1)
    records["num_groups"], records["sum"] = nums[: len(records)], sums[: len(records)]
    return records.tobytes() or np.zeros(1, MAJORITY).tobytes()


def _majority_shares(scored: Sequence[tuple[str, bool]], read: AnswerReader) -> Numbers:
    """Texts are read only where it matters: some are right, and some are not."""
    is_right = [right for _, right in scored]
    if all(is_right) or not any(is_right):
        return np.full(len(scored), float(any(is_right)))
    return majority_shares(
        votes_of([text for text, _ in scored], is_right, read), is_right
    )


def _quantiles(values: Numbers) -> bytes:
    if not len(values):
        return b""
    return np.percentile(values, QUANTILES).astype(QUANTILE).tobytes()


def _rules(
    groups: Sequence[StepGroup],
    names: Sequence[str],
    composition: Composition,
    step: int,
) -> bytes:
    shares = share(groups, names, composition, step)
    head = [getattr(shares, name) for name in RULE_HEAD]
    by_rule = np.stack([shares.part_sum, shares.share_sum, shares.num_varied], axis=1)
    return np.concatenate([head, by_rule.ravel()]).astype(RULE).tobytes()


def step_timing(
    groups: Sequence[StepGroup], metrics: Mapping[str, float | None]
) -> list[float]:
    """Seconds by ANATOMY. Those on dead groups, of all (sampled) or of the batch:

    generate: time × tokens of dead groups / tokens of all groups
    score: time × completions of dead groups / completions of all groups
    logprobs, update: time × tokens of dead groups in the batch / tokens of the batch
    """
    seconds = {name: metrics.get(f"time/{name}") for name in (*PHASES, "step")}
    measured = [
        clip(s) if s is not None and math.isfinite(s) else 0.0 for s in seconds.values()
    ]
    dead = [group for group in groups if group.is_dead]
    batch = [group for group in groups if group.is_trained]
    dead_batch = [group for group in dead if group.is_trained]
    generate, score, logprobs, update = measured[:4]
    of_batch = _share(_num_tokens(dead_batch), _num_tokens(batch))
    lost = [
        generate * _share(_num_tokens(dead), _num_tokens(groups)),
        score * _share(_num_completions(dead), _num_completions(groups)),
        logprobs * of_batch,
        update * of_batch,
    ]
    assert len(measured) + len(lost) == len(TIMINGS)
    # No one knows without groups, nor without their lengths.
    is_known = groups and all(None not in group.num_tokens for group in groups)
    return measured + (lost if is_known else [math.nan] * len(lost))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _num_tokens(groups: Iterable[StepGroup]) -> int:
    return sum(n or 0 for group in groups for n in group.num_tokens)


def _num_completions(groups: Iterable[StepGroup]) -> int:
    return sum(len(group.rewards) for group in groups)
