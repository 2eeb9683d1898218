"""The rules of a recipe, in the order of the menu."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer.rewards.rule import Example, Rule
from trainer.rewards.rules import (
    answer,
    code,
    contains,
    documents,
    environment,
    equations,
    language,
    length,
    llm_judge,
    majority,
    marker_answer,
    multiple_choice,
    python_function,
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
    environment.ENVIRONMENT,
    environment.TURN_REWARDS,
    repetition.RULE,
    code.CODE_TESTS,
    python_function.RULE,
    llm_judge.RULE,
    reward_model.RULE,
)
RULES: dict[str, Rule[Any]] = {rule.kind: rule for rule in _ALL}


def examples_of(rule: Rule[Any]) -> tuple[list[Example], list[Example]]:
    """Return all passing and all failing examples, including those with thinking."""
    passing = [rule.example_pass, *rule.also_pass]
    failing = [rule.example_fail, *rule.also_fail]
    if "read_thinking" in rule.params_model.model_fields:
        right = rule.example_pass.sample.completion
        wrong = rule.example_fail.sample.completion
        passing += [
            _written(rule.example_pass, f"{right}<|im_end|>"),
            _written(rule.example_pass, f"<think>{wrong}</think>\n{right}"),
            _written(rule.example_pass, f"{wrong}</think>\n{right}", opened="<think>"),
        ]
        failing += [
            _written(rule.example_pass, f"<think>{right}</think>\n{wrong}"),
            _written(rule.example_pass, f"<think>Maybe {right} But wait"),
            _written(rule.example_pass, f"Maybe {right} But wait", opened="<think>"),
        ]
    return passing, failing


def _written(example: Example, completion: str, *, opened: str = "") -> Example:
    prompt = f"{example.sample.prompt}\n{opened}\n" if opened else example.sample.prompt
    sample = replace(example.sample, prompt=prompt, completion=completion)
    return replace(example, sample=sample)
