"""A step's completions as the events that a trainer of ours would have written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dashboard.datasets.row import Prompt
from dashboard.exchange.import_formats import Sample
from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.config import AdvantageConfig
from trainer.events import EndReason, GroupScored, ScoredCompletion, Signal

# A completion's reward, where its file has only the parts.

Weights = Mapping[str, float | None]  # None: the column is no rule


def default_weights(tool: str, names: Iterable[str]) -> dict[str, float]:
    """TRL adds its functions up; what verl's told besides is no part of the score."""
    if tool == "verl":
        return {name: float(name == "score") for name in names}
    return dict.fromkeys(names, 1.0)


def reward_of(sample: Sample, weights: Weights) -> float | None:
    """The file's total, else Σ weight × score over what has a score; None: nothing."""
    if sample.reward is not None:
        return sample.reward
    parts = [
        weight * score
        for name, score in sample.scores.items()
        if score is not None and (weight := weights.get(name))
    ]
    return sum(parts) if parts else None


# A = (reward - mean) / (deviation + 1e-4), ddof 1: as TRL does, and verl but for ε.
USUAL = AdvantageConfig(ddof=1, eps=1e-4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """What was chosen on the page."""

    weights: Weights
    computes_advantages: bool
    right_from: float | None  # the reward; None: nobody can tell
    lowest: float | None  # of all that was seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in the log an event stands."""

    line: int
    time: float
    step: int


def text_of(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def make_group(
    place: Place, prompt_index: int, samples: Sequence[Sample], scoring: Scoring
) -> GroupScored:
    rewards = [reward_of(sample, scoring.weights) for sample in samples]
    scored = [reward for reward in rewards if reward is not None]
    return GroupScored(
        line=place.line,
        attempt=1,
        time=place.time,
        step=place.step,
        prompt_index=prompt_index,
        prompt=text_of(samples[0].prompt),
        answer=samples[0].answer,
        reward_mean=math.fsum(scored) / len(scored) if scored else None,
        reward_std=_std(scored) if scored else None,
        signal=_signal(scored, scoring),
        completions=[
            ScoredCompletion(
                text=sample.completion,
                num_tokens=sample.num_tokens,
                end_reason=_end(sample),
                reward=reward,
                rules=_rules(sample, scoring.weights),
                advantage=advantage,
                mean_logprob=None,
            )
            for sample, reward, advantage in zip(
                samples, rewards, _advantages(samples, rewards, scoring), strict=True
            )
        ],
    )


def _end(sample: Sample) -> EndReason:
    known: dict[str, EndReason] = {"stop": "stop", "length": "length"}
    return known.get(sample.end_reason, "unknown")


def _rules(sample: Sample, weights: Weights) -> dict[str, float | None]:
    return {
        name: score
        for name, score in sample.scores.items()
        if weights.get(name) is not None
    }


def _advantages(
    samples: Sequence[Sample], rewards: Sequence[float | None], scoring: Scoring
) -> list[float | None]:
    """The file's; where it has none, computed if that was chosen."""
    told = [sample.advantage for sample in samples]
    if not scoring.computes_advantages or any(one is not None for one in told):
        return told
    return [*group_advantages(reward_matrix([rewards]), USUAL)[0].tolist()]


def _signal(scored: Sequence[float], scoring: Scoring) -> Signal:
    if not scored:
        return "unscorable"
    if min(scored) < max(scored):
        return "mixed"
    if scoring.right_from is None:
        return "tied"
    if scored[0] >= scoring.right_from:
        return "all_right"
    return "all_wrong" if scored[0] == scoring.lowest else "tied"


def _std(values: Sequence[float]) -> float:
    if len(set(values)) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1))


def metrics_of(groups: Sequence[GroupScored]) -> dict[str, float | None]:
    """As trainer/output/metrics.py names them; lengths only where all are known."""
    completions = [c for group in groups for c in group.completions]
    rewards = [c.reward for c in completions if c.reward is not None]
    spreads = [g.reward_std for g in groups if g.reward_std is not None]
    count = Counter(group.signal for group in groups)
    num = len(groups)
    metrics = {
        "reward/mean": _mean(rewards),
        "reward/std": _std(rewards) if rewards else None,
        "group/std_mean": _mean(spreads),
        "group/frac_zero_std": 1 - count["mixed"] / num,
        "group/frac_all_max": count["all_right"] / num,
        "group/frac_all_min": count["all_wrong"] / num,
        "group/frac_tied": count["tied"] / num,
        "group/frac_unscorable": count["unscorable"] / num,
        "group/num_effective": float(count["mixed"]),
        "sampling/num_completions": float(len(completions)),
    }
    for name in dict.fromkeys(name for c in completions for name in c.rules):
        given = [score for c in completions if (score := c.rules.get(name)) is not None]
        metrics[f"reward/{name}/mean"] = _mean(given)
    advantages = [abs(c.advantage) for c in completions if c.advantage is not None]
    if advantages:
        metrics["advantage/abs_mean"] = _mean(advantages)
    lengths = [c.num_tokens for c in completions if c.num_tokens is not None]
    if len(lengths) == len(completions):
        metrics["completion/mean_length"] = _mean(lengths)
        metrics["sampling/num_tokens"] = float(sum(lengths))
    return metrics


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
