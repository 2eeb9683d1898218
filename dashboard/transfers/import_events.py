"""An import's completions as the `GroupScored` events that Cohort's trainer writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dashboard.transfers.import_formats import Sample
from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.client.lines import mean, signal_of, std
from trainer.config import AdvantageConfig
from trainer.events import GroupScored, ScoredCompletion
from trainer.rewards.rule import message_text

Weights = Mapping[str, float | None]  # None: the column is not a rule
# A = (reward - mean) / (deviation + 1e-4), ddof 1: as TRL does, and verl but for ε.
TRL_ADVANTAGES = AdvantageConfig(ddof=1, eps=1e-4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """The choices on the page."""

    weights: Weights
    computes_advantages: bool
    right_from: float | None  # the reward; None: unknown
    lowest: float | None  # of all that was seen


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPosition:
    """The position of an event in the log."""

    line: int
    time: float
    step: int


def default_weights(tool: str, names: Iterable[str]) -> dict[str, float]:
    """TRL sums its reward functions; verl's other outputs are not part of the score."""
    if tool == "verl":
        return {name: float(name == "score") for name in names}
    return dict.fromkeys(names, 1.0)


def reward_of(sample: Sample, weights: Weights) -> float | None:
    """Return the file's total, else Σ weight × score over what has a score; None:
    nothing.
    """
    if sample.reward is not None:
        return sample.reward
    parts = [
        weight * score
        for name, score in sample.scores.items()
        if score is not None and (weight := weights.get(name))
    ]
    return sum(parts) if parts else None


def make_group(
    position: LogPosition,
    prompt_index: int,
    samples: Sequence[Sample],
    scoring: Scoring,
) -> GroupScored:
    rewards = [reward_of(sample, scoring.weights) for sample in samples]
    scored = [reward for reward in rewards if reward is not None]
    advantages = [sample.advantage for sample in samples]
    if scoring.computes_advantages and all(value is None for value in advantages):
        matrix = group_advantages(reward_matrix([rewards]), TRL_ADVANTAGES)
        advantages = [*matrix[0].tolist()]
    prompt = samples[0].prompt
    if not isinstance(prompt, str):
        prompt = "\n\n".join(f"{m['role']}: {message_text(m)}" for m in prompt)
    return GroupScored(
        line=position.line,
        attempt=1,
        time=position.time,
        step=position.step,
        prompt_index=prompt_index,
        prompt=prompt,
        answer=samples[0].answer,
        reward_mean=mean(scored),
        reward_std=std(scored),
        signal=signal_of(scored, right_from=scoring.right_from, lowest=scoring.lowest),
        completions=[
            ScoredCompletion(
                text=sample.completion,
                num_tokens=sample.num_tokens,
                end_reason=sample.end_reason,
                reward=reward,
                rules={
                    name: score
                    for name, score in sample.scores.items()
                    if scoring.weights.get(name) is not None
                },
                advantage=advantage,
                mean_logprob=None,
            )
            for sample, reward, advantage in zip(
                samples, rewards, advantages, strict=True
            )
        ],
    )
