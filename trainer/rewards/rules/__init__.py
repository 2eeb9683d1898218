"""The rules a recipe can be made of, in the order in which they are offered."""

from __future__ import annotations

from typing import Any

from trainer.rewards.rule import Rule
from trainer.rewards.rules import (
    answer,
    code,
    contains,
    documents,
    equations,
    language,
    length,
    llm_judge,
    majority,
    marker_answer,
    multiple_choice,
    reasoning,
    reasoning_gym,
    repetition,
    reward_model,
    tags,
)

_ALL: tuple[Rule[Any], ...] = (
    answer.NUMERIC_ANSWER,
    answer.EXACT_ANSWER,
    marker_answer.RULE,
    answer.MATH_VERIFY,
    multiple_choice.RULE,
    reasoning.REASONING_ANSWER,
    equations.COUNTDOWN,
    equations.EQUATIONS,
    reasoning_gym.RULE,
    tags.FORMAT_TAGS,
    tags.TAG_COUNT,
    reasoning.REASONING_STEPS,
    documents.JSON_SCHEMA,
    documents.XML_WELL_FORMED,
    contains.CONTAINS,
    contains.REGEX,
    language.SCRIPT,
    language.LANGUAGE,
    length.LENGTH,
    length.SOFT_OVERLONG,
    length.COSINE_LENGTH,
    length.LENGTH_RANK,
    majority.RULE,
    repetition.RULE,
    code.CODE_TESTS,
    code.PYTHON_FUNCTION,
    llm_judge.RULE,
    reward_model.RULE,
)
RULES: dict[str, Rule[Any]] = {rule.kind: rule for rule in _ALL}
