"""A recipe as one line of words."""

from __future__ import annotations

from typing import Any

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
    "length": "is {minimum:,} to {maximum:,} {unit} long",
    "math_verify": "answer is mathematically right",
    "multiple_choice": "chooses the right option",
    "numeric_answer": "answer is numerically right",
    "python_function": "what a Python function gives",
    "reasoning_gym": "task's own scorer",
    "reasoning_steps": "shows {num_steps:,} steps",
    "regex": "{verb} /{pattern}/",
    "repetition": "repeats no {ngram_size} {unit}",
    "script": "is written in {scripts}",
    "xml_well_formed": "is well-formed XML",
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
    terms = [(rule.weight, _phrase(rule)) for rule in recipe.rules]
    text = " ".join(
        f"{'−' if weight < 0 else '+'} {abs(weight):g} × {phrase}"
        for weight, phrase in terms
    )
    return text.removeprefix("+ ")


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
