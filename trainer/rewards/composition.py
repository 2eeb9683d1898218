"""What a recipe makes of its rules' scores: each one's part, and the reward."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainer.rewards.spec import Recipe, RuleSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A rule's part in a reward: `weight` times the `score` that counts.

    That is the rule's own score once it is clipped and gated; None: it has none, or
    does not apply.

    >>> Part(weight=0.5, score=1.0).value
    0.5
    """

    weight: float
    score: float | None

    @property
    def value(self) -> float | None:
        return None if self.score is None else self.weight * self.score


def parts_of(
    recipe: Recipe, scores: Mapping[str, float | None], *, step: int
) -> dict[str, Part]:
    """Each rule's part, from all rules' own scores at a step of the run."""
    return {spec.name: _part(spec, scores, step) for spec in recipe.rules}


def reward_of(
    recipe: Recipe, parts: Mapping[str, Part], *, failed: Collection[str] = ()
) -> float | None:
    """The sum, product or minimum of the parts that there are, clipped.

    None when there are none. A product and a minimum leave out what has weight 0, and
    are None where a rule has `failed`: without it they could only be higher, for no
    merit of the completion.
    """
    known = [part for part in parts.values() if part.score is not None]
    if not known:
        return None
    if recipe.combine in ("sum", "normalize_then_sum"):
        reward = math.fsum(part.value or 0.0 for part in known)
    elif any(_misses(recipe, part, name, failed) for name, part in parts.items()):
        return None
    else:
        factors = [part.value or 0.0 for part in known if part.weight]
        join = math.prod if recipe.combine == "product" else min
        reward = join(factors) if factors else 0.0
    return recipe.clip.apply(reward) if recipe.clip else reward


def _part(spec: RuleSpec, scores: Mapping[str, float | None], step: int) -> Part:
    score = scores.get(spec.name)
    is_open = _is_open(spec, scores)
    if score is not None and spec.clip is not None:
        score = spec.clip.apply(score)
    if is_open is None or (is_open is False and spec.may_not_apply):
        score = None
    elif is_open is False and score is not None:
        score = 0.0
    return Part(weight=spec.weight_at(step), score=score)


def _is_open(spec: RuleSpec, scores: Mapping[str, float | None]) -> bool | None:
    """Whether a rule's gate is; None: nobody can say."""
    gate = spec.only_if
    if gate is None:
        return True
    other = scores.get(gate.rule)
    return None if other is None else other >= gate.at_least


def _misses(recipe: Recipe, part: Part, name: str, failed: Collection[str]) -> bool:
    """Whether a rule of weight has failed, or the one that its gate looks at."""
    spec = next(rule for rule in recipe.rules if rule.name == name)
    gate = spec.only_if
    return part.weight != 0 and (
        name in failed or (gate is not None and gate.rule in failed)
    )
