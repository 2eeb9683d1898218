"""Answers by any answer rule: which are correct, and which are the same.

`are_right` compares with the row's answer. `reader_of` normalises an answer to a text,
so that completions can be compared with one another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from trainer.rewards.extraction import (
    extract,
    last_boxed,
    last_line,
    without_thinking,
)
from trainer.rewards.rule import Params, Rule, Sample, Unscorable
from trainer.rewards.rules.answer import (
    EXACT_ANSWER,
    MATH_VERIFY,
    NUMERIC_ANSWER,
    ExactAnswerParams,
    MathVerifyParams,
    NumericAnswerParams,
    find_number,
    normalise,
)
from trainer.rewards.rules.marker_answer import RULE as MARKER_ANSWER
from trainer.rewards.rules.marker_answer import (
    MarkerAnswerParams,
    read_marked,
    same_answer,
)
from trainer.rewards.rules.multiple_choice import RULE as MULTIPLE_CHOICE
from trainer.rewards.rules.multiple_choice import MultipleChoiceParams, read_choice

ANSWER_RULES: dict[str, Rule[Any]] = {
    rule.kind: rule
    for rule in (
        MATH_VERIFY,
        NUMERIC_ANSWER,
        EXACT_ANSWER,
        MARKER_ANSWER,
        MULTIPLE_CHOICE,
    )
}
AnswerKind = Literal[
    "math_verify", "numeric_answer", "exact_answer", "marker_answer", "multiple_choice"
]


class RightnessParams(Params):
    """The rule that says whether a completion is right, and its settings."""

    answer_kind: AnswerKind = Field(
        "math_verify",
        title="Answer rule",
        description="Rule whose full score makes a completion correct.",
    )
    # After answer_kind, by which it is checked.
    answer_params: dict[str, Any] = Field(
        {},
        title="Answer rule settings",
        description="Settings that differ from the rule's defaults, as JSON: "
        '{"source": "whole"}.',
        validate_default=True,
    )

    @field_validator("answer_params")
    @classmethod
    def _fill(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = info.data.get("answer_kind")
        return params if kind is None else filled_params(kind, params)


def filled_params(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an answer's rule, with its defaults; ValueError says which
    is wrong.
    """
    try:
        params = ANSWER_RULES[kind].params_model.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ValueError(f"{kind}, {where}: {fault['msg']}") from error
    filled: dict[str, Any] = params.model_dump(mode="json")
    return filled


def are_right(
    samples: Sequence[Sample], params: RightnessParams, *, as_published: bool = False
) -> list[bool | Unscorable]:
    """Tell for each completion whether it is right, or why no one can say."""
    rule = ANSWER_RULES[params.answer_kind]
    params_of_answer = dict(params.answer_params)
    if as_published and "mode" in rule.params_model.model_fields:
        params_of_answer["mode"] = "as_published"
    answer_params = rule.params_model.model_validate(params_of_answer)
    highest = rule.bounds(answer_params)[1]
    return [
        outcome if isinstance(outcome, Unscorable) else outcome >= highest
        for outcome in rule.judge(samples, answer_params)
    ]


def is_right(
    sample: Sample, params: RightnessParams, *, as_published: bool = False
) -> bool:
    """Return whether a completion is right; raises what its rule does where no one can
    say.
    """
    (rightness,) = are_right([sample], params, as_published=as_published)
    if isinstance(rightness, Unscorable):
        raise rightness
    return rightness


AnswerReader = Callable[[str], str | None]

# What changes how a formula looks and not what it says.
_LOOKS = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;:()\[\]]|[\s$]")
_LONGEST = 1_000  # characters; a longer answer is an essay


def reader_of(params: Params) -> AnswerReader | None:
    """Return how the rule of these settings reads answers; the same text, the same
    answer.

    None when it looks for none that two completions could share.
    """
    find = _FINDERS.get(type(params))
    if find is None:
        return None
    settings: Any = params
    is_published = getattr(params, "mode", "strict") == "as_published"
    is_whole = settings.read_thinking or is_published
    return lambda text: find(text if is_whole else without_thinking(text), settings)


def _find_formula(text: str, params: MathVerifyParams) -> str | None:
    """Formulas that are written alike are one answer, 1/2 and 0.5 are two."""
    if params.mode == "as_published" or params.source == "whole":
        text_of_formula = last_boxed(text) or last_line(text)
    else:
        text_of_formula = extract(text, params)
    return None if text_of_formula is None else _written(text_of_formula)


def _written(formula: str) -> str | None:
    """Write it without its spaces, dollar signs and sizes of brackets.

    >>> _written(r"$\\left( \\dfrac{1}{2} \\right)$.")
    '(\\\\frac{1}{2})'
    """
    boxed = last_boxed(formula)
    plain = _LOOKS.sub("", (formula if boxed is None else boxed)[-_LONGEST:])
    plain = plain.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.rstrip(".") or None


def _find_text(text: str, params: ExactAnswerParams) -> str | None:
    answer = extract(text, params)
    return None if answer is None else normalise(answer, params)


def _find_marked(text: str, params: MarkerAnswerParams) -> str | None:
    answer = read_marked(text, params)
    return None if answer is None else same_answer(answer, params)


def _find_number(text: str, params: NumericAnswerParams) -> str | None:
    number = find_number(text, params)
    return None if number is None else str(number)  # 0.5 and 1/2 are one answer


_FINDERS: dict[type[Params], Callable[[str, Any], str | None]] = {
    MathVerifyParams: _find_formula,
    NumericAnswerParams: _find_number,
    MarkerAnswerParams: _find_marked,
    MultipleChoiceParams: read_choice,
    ExactAnswerParams: _find_text,
}


RIGHT = "\N{CHECK MARK} correct"  # no reader finds such a text


def votes_of(
    texts: Sequence[str], is_right: Sequence[bool], read: AnswerReader
) -> list[str | None]:
    """Return for each completion of a prompt the answer that it votes for; None: for
    none.

    Right completions give the row's answer, however they write it, so they are not
    read and vote as one.
    """
    return [
        RIGHT if right else read(text)
        for text, right in zip(texts, is_right, strict=True)
    ]
