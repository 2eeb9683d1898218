"""A recipe as one line of words."""

from __future__ import annotations

from typing import Any

from dashboard.rewards.formulas import write_clip, write_weight
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, RuleSpec

PHRASES = {
    "code_tests": "code passes the row's tests",
    "contains": "{verb} of the phrases",
    "cosine_length": "is right and short",
    "countdown": "equation reaches the target",
    "exact_answer": "answer is exactly right",
    "format_tags": "uses {tags}",
    "json_schema": "is JSON of the schema",
    "language": "is written in {language}",
    "length_rank": "is right and shorter than the others",
    "length": "is {minimum:,} to {maximum:,} {unit} long",
    "llm_judge": "score of the judge {model}",
    "majority": "agrees with the majority",
    "math_verify": "answer is mathematically right",
    "multiple_choice": "chooses the right option",
    "numeric_answer": "answer is numerically right",
    "python_function": "what a Python function gives",
    "reasoning_answer": "is right behind the reasoning",
    "reasoning_gym": "task's own scorer",
    "reasoning_steps": "shows {num_steps:,} steps",
    "regex": "{verb} /{pattern}/",
    "repetition": "repeats no {ngram_size} {unit}",
    "reward_model": "score of the reward model {path}",
    "script": "is written in {scripts}",
    "soft_overlong": "stays clear of {limit:,} {unit}",
    "xml_well_formed": "is well-formed XML",
}
LISTS = {
    "product": "the product of",
    "minimum": "the smallest of",
    "normalize_then_sum": "the sum, each normalised within its group, of",
}
MATCH_VERBS = {
    "contains": "contains",
    "whole": "is",
    "absent": "avoids",
    "all": "contains all",
    "any": "contains one",
    "none": "contains none",
    "share": "contains a share",
}


def recipe_sentence(recipe: Recipe) -> str:
    """
    >>> "1 × answer is numerically right + 0.2 × uses think and answer tags"
    """
    text = " ".join(f"{_sign(rule)} {_term(rule)}" for rule in recipe.rules)
    if recipe.combine in LISTS:
        terms = [_term(rule, is_listed=True) for rule in recipe.rules]
        text = f"{LISTS[recipe.combine]} {'; '.join(terms)}"
    if recipe.clip is not None:
        text += f", clipped to {write_clip(recipe.clip)}"
    return text.removeprefix("+ ")


def _sign(rule: RuleSpec) -> str:
    return "−" if rule.weight < 0 and rule.schedule is None else "+"


def _term(rule: RuleSpec, *, is_listed: bool = False) -> str:
    """A rule with its weight; where terms are listed, signs stand in front of it."""
    weight = f"{rule.weight if is_listed else abs(rule.weight):g}".replace("-", "−")
    if rule.schedule is not None:
        weight = write_weight(rule.weight, rule.schedule)
    text = f"{weight} × {_phrase(rule)}"
    if rule.clip is not None:
        text += f" (clipped to {write_clip(rule.clip)})"
    gate = rule.only_if
    if gate is not None:
        text += f", only if {gate.rule} ≥ {gate.at_least:g}"
        text += " (left out otherwise)" if rule.may_not_apply else ""
    return text


def _phrase(spec: RuleSpec) -> str:
    rule = RULES.get(spec.kind)
    if rule is None:
        return spec.name
    params = rule.params_model.model_validate(spec.params).model_dump()
    template = PHRASES.get(spec.kind, rule.title.lower())
    return template.format(**params, tags=_tags(params), verb=_verb(params))


def _tags(params: dict[str, Any]) -> str:
    names = [params.get("think_tag"), params.get("answer_tag")]
    given = [name for name in names if name]
    return f"{' and '.join(given)} tag{'s' if len(given) > 1 else ''}"


def _verb(params: dict[str, Any]) -> str:
    return MATCH_VERBS.get(str(params.get("match")), "matches")
