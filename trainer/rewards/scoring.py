"""Scoring completions with a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from trainer.rewards.logs import keeping
from trainer.rewards.rules import RULES
from trainer.rewards.sample import Sample, Unscorable
from trainer.rewards.spec import Recipe, RuleSpec

__all__ = ["Sample", "Score", "score_all", "score_completion"]


@dataclass(frozen=True)
class Score:
    """A completion's reward and each rule's part in it, before its weight.

    `None` is no score and never 0: the row could not be judged by that rule, and
    `errors` says why. `total` is None when no rule gave a score. `logs` has what rules
    printed.

    >>> Score(1.05, {"format": 0.5, "answer": 1.0}, {})  # weights 0.1 and 1
    """

    total: float | None
    rules: dict[str, float | None]
    errors: dict[str, str]
    logs: dict[str, str] = field(default_factory=dict)


def score_completion(recipe: Recipe, sample: Sample) -> Score:
    """total = the sum of weight * score over the rules that gave a score.

    Never raises for anything a completion, an answer or a column holds.
    """
    sample = _without_surrogates(sample)
    rules: dict[str, float | None] = {}
    errors: dict[str, str] = {}
    logs: dict[str, str] = {}
    for spec in recipe.rules:
        with keeping() as printed:
            try:
                rules[spec.name] = _score(spec, sample)
            except Unscorable as error:
                rules[spec.name] = None
                errors[spec.name] = str(error)
        if printed:
            logs[spec.name] = "".join(printed)
    return Score(_total(recipe, rules), rules, errors, logs)


def score_all(recipe: Recipe, samples: Iterable[Sample]) -> list[Score]:
    """One score for each sample, in order."""
    return [score_completion(recipe, sample) for sample in samples]


def _score(spec: RuleSpec, sample: Sample) -> float:
    score = RULES[spec.kind].score(sample, spec.checked_params())
    assert math.isfinite(score), f"{spec.kind} gave {score}"
    return score


def _total(recipe: Recipe, rules: dict[str, float | None]) -> float | None:
    parts = [
        spec.weight * score
        for spec in recipe.rules
        if (score := rules[spec.name]) is not None
    ]
    return math.fsum(parts) if parts else None


def _without_surrogates(sample: Sample) -> Sample:
    """A token cut in two can decode to half a surrogate pair, which is no UTF-8."""
    answer = sample.answer
    return replace(
        sample,
        completion=_replace_surrogates(sample.completion),
        answer=None if answer is None else _replace_surrogates(answer),
    )


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
