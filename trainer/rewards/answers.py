"""Reading completions' answers as a recipe does, so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.rewards.reading import AnswerReader, reader_of
from trainer.rewards.spec import Recipe, RuleSpec

__all__ = ["RIGHT", "AnswerReader", "answer_reader", "votes_of"]

RIGHT = "\N{CHECK MARK} right"  # no reader finds such a text


def answer_reader(recipe: Recipe) -> AnswerReader | None:
    """How to read answers under a recipe: as its weightiest answer rule does.

    None when no rule looks for an answer that two completions could share (equations,
    formats and lengths are judged otherwise).
    """
    readers = (
        reader_of(rule.checked_params()) for rule in sorted(recipe.rules, key=_rank)
    )
    return next((reader for reader in readers if reader is not None), None)


def votes_of(
    texts: Sequence[str], is_right: Sequence[bool], read: AnswerReader
) -> list[str | None]:
    """For each completion of a prompt the answer that it votes for; None: for none.

    Right completions give the row's answer, however they write it, so they are not
    read and vote as one.
    """
    return [
        RIGHT if right else read(text)
        for text, right in zip(texts, is_right, strict=True)
    ]


def _rank(rule: RuleSpec) -> float:
    return -max(abs(weight) for weight in rule.weights)
