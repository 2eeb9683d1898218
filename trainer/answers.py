"""Reading completions' answers as a recipe does, so that they can be compared."""

from __future__ import annotations

from trainer.rewards.reading import AnswerReader, reader_of
from trainer.rewards.spec import Recipe, RuleSpec

__all__ = ["AnswerReader", "answer_reader"]


def answer_reader(recipe: Recipe) -> AnswerReader | None:
    """How to read answers under a recipe: as its weightiest answer rule does.

    None when no rule looks for an answer that two completions could share (equations,
    formats and lengths are judged otherwise).
    """
    readers = (
        reader_of(rule.checked_params()) for rule in sorted(recipe.rules, key=_rank)
    )
    return next((reader for reader in readers if reader is not None), None)


def _rank(rule: RuleSpec) -> float:
    return -max(abs(weight) for weight in rule.weights)
