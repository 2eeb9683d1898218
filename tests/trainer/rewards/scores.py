"""Shorthand of the reward tests: the score of one rule on one completion."""

from typing import Any

from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import Score, score_all
from trainer.rewards.spec import Recipe, RuleSpec

# Seconds of a core's time, which other work on it doubles. What grows as the square of
# a text's length takes minutes.
AT_ONCE = 5

# Others ask a model, which is not always there.
BY_THEMSELVES = [kind for kind, rule in RULES.items() if rule.batching is None]


def recipe_of(kind: str, **params: Any) -> Recipe:
    return Recipe(rules=(RuleSpec(name="it", kind=kind, params=params),))


def score(
    kind: str,
    completion: str,
    answer: str | list[str] | None = None,
    columns: dict[str, Any] | None = None,
    **params: Any,
) -> float | None:
    return scored(kind, completion, answer, columns, **params).total


def scored(
    kind: str,
    completion: str,
    answer: str | list[str] | None = None,
    columns: dict[str, Any] | None = None,
    **params: Any,
) -> Score:
    sample = Sample("a prompt", completion, answer, columns or {})
    return score_completion(recipe_of(kind, **params), sample)


def score_completion(recipe: Recipe, sample: Sample, *, step: int = 1) -> Score:
    """The score of a completion by itself, by the weights of a step of the run."""
    return score_all(recipe, [sample], step=step)[0]
