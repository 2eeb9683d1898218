"""Whether a completion is right, by whichever rule compares answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from trainer.rewards.rule import Params, Rule
from trainer.rewards.rules import (
    exact_answer,
    marker_answer,
    math_verify,
    multiple_choice,
    numeric_answer,
)
from trainer.rewards.sample import Sample, Unscorable

ANSWER_RULES: dict[str, Rule[Any]] = {
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


class RightnessParams(Params):
    """Which rule says whether a completion is right, and with which settings."""

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

    @field_validator("answer_params")
    @classmethod
    def _fill(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = info.data.get("answer_kind")
        return given if kind is None else filled_params(kind, given)


def filled_params(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of an answer's rule, with its defaults; ValueError says which is
    wrong.
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
    """For each completion whether it is right, or why nobody can say."""
    rule = ANSWER_RULES[params.answer_kind]
    given = dict(params.answer_params)
    if as_published and "mode" in rule.params_model.model_fields:
        given["mode"] = "as_published"
    answer_params = rule.params_model.model_validate(given)
    highest = rule.bounds(answer_params)[1]
    return [
        outcome if isinstance(outcome, Unscorable) else outcome >= highest
        for outcome in rule.judge(samples, answer_params)
    ]


def is_right(
    sample: Sample, params: RightnessParams, *, as_published: bool = False
) -> bool:
    """Whether a completion is right; raises what its rule does where nobody can say."""
    (found,) = are_right([sample], params, as_published=as_published)
    if isinstance(found, Unscorable):
        raise found
    return found
