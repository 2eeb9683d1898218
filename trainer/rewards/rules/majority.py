"""The rule for agreement with the majority of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainer.rewards.rule import Example, NotApplicable, Outcome, Params, Rule, Sample
from trainer.rewards.rules.rightness import ANSWER_RULES, filled_params, reader_of


class MajorityParams(Params):
    answer_kind: Literal[
        "numeric_answer", "multiple_choice", "exact_answer", "marker_answer"
    ] = Field(
        "numeric_answer",
        title="Answer rule",
        description="Rule that extracts and compares answers. The row's own answer is "
        "not used.",
    )
    # After answer_kind, by which it is checked.
    answer_params: dict[str, Any] = Field(
        {},
        title="Answer rule settings",
        description="Settings that differ from the rule's defaults, as JSON: "
        '{"source": "boxed"}.',
        validate_default=True,
    )
    minimum_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Smallest share of all completions that makes a majority.",
    )
    ties: Literal["none", "all"] = Field(
        "none",
        description="When several answers are equally frequent: none of them is "
        "rewarded, or all.",
    )

    @field_validator("answer_params")
    @classmethod
    def _fill(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        kind = info.data.get("answer_kind")
        return params if kind is None else filled_params(kind, params)


def score_majority(samples: Sequence[Sample], params: MajorityParams) -> list[Outcome]:
    """Return 1 for the most frequent answer, 0 for any other and for none at all.

    So the policy is rewarded for agreeing with itself, without ground truth
    (arXiv:2504.16084). An answer that no one else gives is no majority, and a
    completion that is alone cannot be judged.
    """
    if len(samples) < 2:
        raise NotApplicable(
            "This prompt has only one completion, so there is no majority. Score "
            "several together."
        )
    rule = ANSWER_RULES[params.answer_kind]
    read = reader_of(rule.params_model.model_validate(params.answer_params))
    assert read is not None
    answers = [read(sample.text) for sample in samples]
    chosen = _most_frequent(answers, params)
    return [float(answer in chosen) for answer in answers]


def _most_frequent(answers: Sequence[str | None], params: MajorityParams) -> set[str]:
    counts = Counter(answer for answer in answers if answer is not None)
    most = max(counts.values(), default=0)
    if most < max(2, params.minimum_share * len(answers)):
        return set()
    most_given = {answer for answer, count in counts.items() if count == most}
    return most_given if len(most_given) == 1 or params.ties == "all" else set()


RULE = Rule(
    kind="majority",
    title="Majority vote",
    summary="The answer is the most frequent one among the prompt's completions; no "
    "ground truth is needed.",
    params_model=MajorityParams,
    score_group=score_majority,
    example_pass=Example(
        sample=Sample("6 times 7?", "It is 42."), others=("42", "So 41.")
    ),
    example_fail=Example(
        sample=Sample("6 times 7?", "So 41."), others=("42", "It is 42.")
    ),
)
