"""The rules a recipe can be made of, in the order in which they are offered."""

from __future__ import annotations

from typing import Any

from trainer.rewards.rule import Rule
from trainer.rewards.rules import (
    code_tests,
    contains,
    cosine_length,
    countdown,
    equations,
    exact_answer,
    format_tags,
    json_schema,
    language,
    length,
    length_rank,
    llm_judge,
    majority,
    marker_answer,
    math_verify,
    multiple_choice,
    numeric_answer,
    python_function,
    reasoning_answer,
    reasoning_gym,
    reasoning_steps,
    regex,
    repetition,
    reward_model,
    script,
    soft_overlong,
    tag_count,
    xml_well_formed,
)

_ALL: tuple[Rule[Any], ...] = (
    numeric_answer.RULE,
    exact_answer.RULE,
    marker_answer.RULE,
    math_verify.RULE,
    multiple_choice.RULE,
    reasoning_answer.RULE,
    countdown.RULE,
    equations.RULE,
    reasoning_gym.RULE,
    format_tags.RULE,
    tag_count.RULE,
    reasoning_steps.RULE,
    json_schema.RULE,
    xml_well_formed.RULE,
    contains.RULE,
    regex.RULE,
    script.RULE,
    language.RULE,
    length.RULE,
    soft_overlong.RULE,
    cosine_length.RULE,
    length_rank.RULE,
    majority.RULE,
    repetition.RULE,
    code_tests.RULE,
    python_function.RULE,
    llm_judge.RULE,
    reward_model.RULE,
)
RULES: dict[str, Rule[Any]] = {rule.kind: rule for rule in _ALL}
