"""Reading a completion's answer so that it can be compared with other answers."""

from __future__ import annotations

import re
from collections.abc import Callable

from trainer.rewards.extraction import extract, last_boxed, last_line
from trainer.rewards.rule import Params
from trainer.rewards.rules.exact_answer import ExactAnswerParams, normalise
from trainer.rewards.rules.marker_answer import (
    MarkerAnswerParams,
    read_marked,
    same_answer,
)
from trainer.rewards.rules.math_verify import MathVerifyParams
from trainer.rewards.rules.multiple_choice import MultipleChoiceParams, read_choice
from trainer.rewards.rules.numeric_answer import NumericAnswerParams, find_number

AnswerReader = Callable[[str], str | None]

# What changes how a formula looks and not what it says.
_LOOKS = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;:()\[\]]|[\s$]")
_LONGEST = 1_000  # characters; a longer answer is an essay


def reader_of(params: Params) -> AnswerReader | None:
    """How the rule of these settings reads answers; the same text, the same answer.

    None when it looks for none that two completions could share.
    """
    if isinstance(params, MathVerifyParams):
        return _math_reader(params)
    if isinstance(params, NumericAnswerParams):
        return _number_reader(params)
    if isinstance(params, MarkerAnswerParams):
        return _marked_reader(params)
    if isinstance(params, MultipleChoiceParams):
        return lambda text: read_choice(text, params)
    if isinstance(params, ExactAnswerParams):
        return _text_reader(params)
    return None


def _math_reader(params: MathVerifyParams) -> AnswerReader:
    """Formulas that are written alike are one answer, 1/2 and 0.5 are two."""

    def read(text: str) -> str | None:
        if params.mode == "as_published" or params.source == "whole":
            found = last_boxed(text) or last_line(text)
        else:
            found = extract(text, params)
        return None if found is None else _written(found)

    return read


def _written(formula: str) -> str | None:
    """Without its spaces, dollar signs and sizes of brackets.

    >>> _written(r"$\\left( \\dfrac{1}{2} \\right)$.")
    '(\\\\frac{1}{2})'
    """
    boxed = last_boxed(formula)
    plain = _LOOKS.sub("", (formula if boxed is None else boxed)[-_LONGEST:])
    plain = plain.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.rstrip(".") or None


def _text_reader(params: ExactAnswerParams) -> AnswerReader:
    def read(text: str) -> str | None:
        found = extract(text, params)
        return None if found is None else normalise(found, params)

    return read


def _marked_reader(params: MarkerAnswerParams) -> AnswerReader:
    def read(text: str) -> str | None:
        found = read_marked(text, params)
        return None if found is None else same_answer(found, params)

    return read


def _number_reader(params: NumericAnswerParams) -> AnswerReader:
    def read(text: str) -> str | None:
        number = find_number(text, params)
        return None if number is None else str(number)  # 0.5 and 1/2 are one answer

    return read
