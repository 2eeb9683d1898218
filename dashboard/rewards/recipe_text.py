"""A recipe as JSON, and what is wrong with one as sentences."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from dashboard.rewards.json_text import read_json
from trainer.rewards.spec import Recipe


def write_json(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)


def read_recipe(text: str) -> Recipe:
    """The recipe a JSON text describes; ValueError with one sentence a line."""
    tree = read_json(text)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ValueError("\n".join(map(_located, problems))) from None


def _located(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {describe(problem)}" if place else describe(problem)


def describe(problem: Any) -> str:
    """One pydantic error as a sentence with the value seen."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    if problem["type"] == "string_too_short" and not problem["input"]:
        return "This is empty. Fill it in."
    if problem["type"] == "string_pattern_mismatch":
        message = f"Must match {problem['ctx']['pattern']}"
    seen = repr(problem["input"])
    seen = seen if len(seen) <= 60 else f"{seen[:59]}…"
    return f"{message}; got {seen}."
