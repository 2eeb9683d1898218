"""Is the completion right, and as short as it can be?"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.rules import (
    exact_answer,
    marker_answer,
    math_verify,
    multiple_choice,
    numeric_answer,
)
from trainer.rewards.sample import Sample

_ANSWER_RULES: dict[str, Rule[Any]] = {
    rule.kind: rule
    for rule in (
        math_verify.RULE,
        numeric_answer.RULE,
        exact_answer.RULE,
        marker_answer.RULE,
        multiple_choice.RULE,
    )
}
AnswerKind = Literal[
    "math_verify", "numeric_answer", "exact_answer", "marker_answer", "multiple_choice"
]


class CosineLengthParams(Params):
    answer_kind: AnswerKind = Field(
        "math_verify",
        title="Right by",
        description="Rule that says whether the completion is right: by its full "
        "score.",
    )
    # After answer_kind, by which it is checked.
    answer_params: dict[str, Any] = Field(
        {},
        title="That rule's settings",
        description="As JSON, those that differ from its defaults: "
        '{"source": "whole"}.',
        validate_default=True,
    )
    unit: LengthUnit = Field(
        "characters", description="What is counted; words stand between white space."
    )
    max_length: int = Field(
        1_000,
        ge=1,
        le=10_000_000,
        description="Length from which on a completion counts as long.",
        json_schema_extra={"unit": "characters or words"},
    )
    short_right_score: float = Field(
        1.0, ge=-100, le=100, description="Score of a right completion of length 0."
    )
    long_right_score: float = Field(
        0.5, ge=-100, le=100, description="Score of a right completion that is long."
    )
    short_wrong_score: float = Field(
        -1.0, ge=-100, le=100, description="Score of a wrong completion of length 0."
    )
    long_wrong_score: float = Field(
        -0.5,
        ge=-100,
        le=100,
        description="Score of a wrong completion that is long: it has tried.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: longer than long is long. as_published: past the maximum "
        "the cosine turns back, so that twice as long scores as short, and the answer "
        "is read as published too (Open R1).",
    )

    @field_validator("answer_params")
    @classmethod
    def _fill(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = info.data.get("answer_kind")
        if kind is None:
            return given
        try:
            params = _ANSWER_RULES[kind].params_model.model_validate(given)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise ValueError(f"{kind}, {where}: {fault['msg']}") from error
        filled: dict[str, Any] = params.model_dump(mode="json")
        return filled


def score_cosine(sample: Sample, params: CosineLengthParams) -> float:
    """long + (short - long) * (1 + cos(pi * min(1, length / max_length))) / 2.

    `short` and `long` are the scores of right or of wrong completions
    (arXiv:2502.03373, appendix C.1). Unscorable where the answer's rule says so.
    """
    is_right = _is_right(sample, params)
    progress = count_length(sample.completion, params.unit) / params.max_length
    if params.mode == "strict":
        progress = min(1.0, progress)
    if is_right:
        short, long = params.short_right_score, params.long_right_score
    else:
        short, long = params.short_wrong_score, params.long_wrong_score
    share = (1 + math.cos(math.pi * progress)) / 2
    return short * share + long * (1 - share)


def _is_right(sample: Sample, params: CosineLengthParams) -> bool:
    rule = _ANSWER_RULES[params.answer_kind]
    given = dict(params.answer_params)
    if params.mode == "as_published" and "mode" in rule.params_model.model_fields:
        given["mode"] = "as_published"
    answer_params = rule.params_model.model_validate(given)
    return bool(rule.score(sample, answer_params) >= rule.bounds(answer_params)[1])


def _bounds(params: CosineLengthParams) -> tuple[float, float]:
    ends = (
        params.short_right_score,
        params.long_right_score,
        params.short_wrong_score,
        params.long_wrong_score,
    )
    return (min(ends), max(ends))


RULE = Rule(
    kind="cosine_length",
    title="Right and short",
    summary="Right answers score more the shorter they are, wrong ones less.",
    params_model=CosineLengthParams,
    score=score_cosine,
    bounds=_bounds,
    example_pass=Example(
        sample=Sample("2+2?", "4", "4"), params={"answer_kind": "numeric_answer"}
    ),
    example_fail=Example(
        sample=Sample("2+2?", "Let me see. " * 10 + "4", "4"),
        params={"answer_kind": "numeric_answer"},
    ),
    is_slow=True,
)
