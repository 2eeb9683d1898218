"""Reading a completion's answer so that it can be compared with other answers."""

from __future__ import annotations

from collections.abc import Callable

from trainer.rewards.extraction import ExtractionParams, extract, last_block
from trainer.rewards.numerals import last_number
from trainer.rewards.rules.marker_answer import (
    MarkerAnswerParams,
    read_marked,
    same_answer,
)
from trainer.rewards.rules.multiple_choice import MultipleChoiceParams, read_choice
from trainer.rewards.rules.numeric_answer import NumericAnswerParams
from trainer.rewards.spec import Recipe

AnswerReader = Callable[[str], str | None]


def answer_reader(recipe: Recipe) -> AnswerReader | None:
    """How to read answers under a recipe: as its weightiest answer rule does.

    None when no rule looks for an answer that two completions could share (equations,
    formats and lengths are judged otherwise).
    """
    for rule in sorted(recipe.rules, key=lambda rule: -abs(rule.weight)):
        params = rule.checked_params()
        if isinstance(params, NumericAnswerParams):
            return _number_reader(params)
        if isinstance(params, MarkerAnswerParams):
            return _marked_reader(params)
        if isinstance(params, MultipleChoiceParams):
            return _choice_reader(params)
        if rule.kind == "exact_answer" and isinstance(params, ExtractionParams):
            return _text_reader(params)
    return None


def _text_reader(params: ExtractionParams) -> AnswerReader:
    return lambda text: extract(text, params)


def _choice_reader(params: MultipleChoiceParams) -> AnswerReader:
    return lambda text: read_choice(text, params)


def _marked_reader(params: MarkerAnswerParams) -> AnswerReader:
    def read(text: str) -> str | None:
        found = read_marked(text, params)
        return None if found is None else same_answer(found, params)

    return read


def _number_reader(params: NumericAnswerParams) -> AnswerReader | None:
    if params.source not in ("last_number", "tags"):
        return None

    def read(text: str) -> str | None:
        place = last_block(text, params.tag) if params.source == "tags" else text
        number = None if place is None else last_number(place, percent=params.percent)
        return None if number is None else str(number)  # 0.5 and 1/2 are one answer

    return read
