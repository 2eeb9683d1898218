"""Whether two recipes give the same rewards, however they are written."""

from __future__ import annotations

from typing import Any

from trainer.rewards.spec import Recipe

Spec = dict[str, Any]


def is_same_reward(one: Spec, other: Spec) -> bool:
    """Parameters that are left out are their defaults; names are labels alone."""
    if _kinds(one) != _kinds(other):
        return False
    return _without_names(one) == _without_names(other)


def _kinds(spec: Spec) -> list[str]:
    return [rule["kind"] for rule in spec["rules"]]


def _without_names(spec: Spec) -> Spec:
    """The recipe with all that it leaves out, and rules by their places."""
    tree = Recipe.model_validate(spec).model_dump(mode="json")
    places = {rule["name"]: place for place, rule in enumerate(tree["rules"])}
    for rule in tree["rules"]:
        rule["name"] = places[rule["name"]]
        if gate := rule.get("only_if"):
            gate["rule"] = places[gate["rule"]]
    return tree
