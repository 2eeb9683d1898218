"""No parameter of a rule is without bounds, and beyond them it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from trainer.rewards.rules import RULES

# Settings of another rule, which has its own bounds.
OF_ANOTHER_RULE = "answer_params"
LOWEST = {"minimum", "exclusiveMinimum"}
HIGHEST = {"maximum", "exclusiveMaximum"}
PARAMETERS = [
    (kind, name)
    for kind, rule in RULES.items()
    for name in rule.params_model.model_fields
    if name != OF_ANOTHER_RULE
]


def forms(kind: str, name: str) -> list[dict[str, Any]]:
    """What a value may be, as JSON schema tells."""
    field = RULES[kind].params_model.model_json_schema()["properties"][name]
    return [form for form in field.get("anyOf", [field]) if form.get("type") != "null"]


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_parameter_has_bounds(kind: str, name: str) -> None:
    for form in forms(kind, name):
        known = form.keys()
        if form.get("type") in ("integer", "number"):
            assert LOWEST & known
            assert HIGHEST & known
        elif form.get("type") == "array":
            assert "maxItems" in known
            assert "maxLength" in form["items"]
        else:
            is_text = form["type"] == "string"
            is_choice = {"enum", "const"} & known or form["type"] == "boolean"
            assert is_choice or (is_text and {"maxLength", "pattern"} & known)


def beyond(form: dict[str, Any]) -> Iterator[Any]:
    if form.get("type") in ("integer", "number"):
        low = next(form[name] for name in LOWEST if name in form)
        high = next(form[name] for name in HIGHEST if name in form)
        yield from (low - 1, high + 1, float("nan"), float("inf"))
    elif form.get("type") == "array":
        yield ["a"] * (form["maxItems"] + 1)
        yield ["a" * (form["items"]["maxLength"] + 1)]
    elif "enum" in form:
        yield "none of them"
    elif form.get("type") == "string":
        yield "a" * 1_000_001


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_parameter_beyond_its_bounds_is_refused_by_its_name(
    kind: str, name: str
) -> None:
    given = RULES[kind].example_pass.params
    for value in (each for form in forms(kind, name) for each in beyond(form)):
        with pytest.raises(ValidationError) as refused:
            RULES[kind].params_model.model_validate({**given, name: value})

        assert name in {error["loc"][0] for error in refused.value.errors()}
