"""A completion's reward, where its file has only the parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dashboard.exchange.imports.items import Sample

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
