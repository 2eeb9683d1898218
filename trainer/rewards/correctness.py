"""Which completions are correct: one definition for the trainer and the dashboard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, bound_tolerance, recipe_bounds

ANSWER_KINDS = {kind for kind, rule in RULES.items() if rule.decides_correctness}


@dataclass(frozen=True, kw_only=True, slots=True)
class Correctness:
    """A completion with a reward is correct by the rules that compare with the answer.

    At least one of them gave a score, and each that did gave its full score. Without
    such rules, a completion is correct from `least_reward` on; None: unknown.
    """

    full_scores: Mapping[str, float] = field(default_factory=dict)
    least_reward: float | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.full_scores) or self.least_reward is not None

    @property
    def condition(self) -> str:
        """The condition as pages show it.

        >>> Correctness(full_scores={"answer": 1.0, "tests": 1.0}).condition
        'answer = 1, tests = 1'
        """
        if self.full_scores:
            scores = self.full_scores.items()
            return ", ".join(f"{name} = {score:.4g}" for name, score in scores)
        return "" if self.least_reward is None else f"reward {self.least_reward:.4g}"

    def holds(self, reward: float | None, scores: Mapping[str, float | None]) -> bool:
        """Say whether a completion with this reward and these raw scores is correct."""
        if reward is None:
            return False
        if not self.full_scores:
            return self.least_reward is not None and reward >= self.least_reward
        has_score = False
        for name, full in self.full_scores.items():
            score = scores.get(name)
            if score is not None:
                if score < full:
                    return False
                has_score = True
        return has_score


def correctness_of(recipe: Recipe, *, step: int | None = None) -> Correctness:
    """Return the definition by a recipe, at a step of the run; None: at any.

    Bounds are lowered by their tolerance.
    """
    full_scores = {
        rule.name: rule.own_bounds[1] - bound_tolerance(rule.own_bounds[1])
        for rule in recipe.rules
        if rule.kind in ANSWER_KINDS
    }
    highest = recipe_bounds(recipe, step=step)[1]
    if full_scores or not math.isfinite(highest):
        return Correctness(full_scores=full_scores)
    return Correctness(least_reward=highest - bound_tolerance(highest))
