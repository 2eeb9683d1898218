"""No parameter of a rule is without bounds, and beyond them it is refused."""

from collections.abc import Iterator
from typing import Any

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


def test_every_parameter_has_bounds():
    boundless = [
        (kind, name)
        for kind, name in PARAMETERS
        if not all(map(has_bounds, forms(kind, name)))
    ]

    assert boundless == []


def has_bounds(form: dict[str, Any]) -> bool:
    known = form.keys()
    if form.get("type") in ("integer", "number"):
        return bool(LOWEST & known and HIGHEST & known)
    if form.get("type") == "array":
        return "maxItems" in known and "maxLength" in form["items"]
    if {"enum", "const"} & known or form["type"] == "boolean":
        return True
    return form["type"] == "string" and bool({"maxLength", "pattern"} & known)


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


def test_a_parameter_beyond_its_bounds_is_refused_by_its_name():
    let_through = [
        (kind, name, value)
        for kind, name in PARAMETERS
        for form in forms(kind, name)
        for value in beyond(form)
        if name not in refused(kind, name, value)
    ]

    assert let_through == []


def refused(kind: str, name: str, value: Any) -> set[int | str]:
    """Which parameters are named by the refusal."""
    given = RULES[kind].example_pass.params
    try:
        RULES[kind].params_model.model_validate({**given, name: value})
    except ValidationError as refusal:
        return {error["loc"][0] for error in refusal.errors()}
    return set()
