from typing import Any

from dashboard.rewards.recipe_text import is_same_reward

FORMAT: dict[str, Any] = {"name": "format", "kind": "format_tags", "weight": 0.2}
ANSWER: dict[str, Any] = {"name": "answer", "kind": "numeric_answer", "weight": 1.0}
GATE = {"rule": "format", "at_least": 1.0}


def spec(*rules: dict[str, Any], **composed: Any) -> dict[str, Any]:
    return {"rules": list(rules), **composed}


def test_names_and_missing_defaults_do_not_change_the_reward():
    default = {**ANSWER, "weight": 1, "params": {"source": "last_number"}}
    renamed = {**FORMAT, "name": "tags"}, {**ANSWER, "name": "is_right"}
    for other in (
        spec(FORMAT, ANSWER),
        spec(FORMAT, default),
        spec(*renamed, combine="sum"),
    ):
        assert is_same_reward(spec(FORMAT, ANSWER), other)


def test_different_scores_are_a_different_reward():
    for other in (
        spec(ANSWER),
        spec(FORMAT, {**ANSWER, "weight": 0.5}),
        spec(FORMAT, {**ANSWER, "params": {"source": "marker"}}),
        spec(FORMAT, ANSWER, combine="product"),
        spec(FORMAT, {**ANSWER, "only_if": GATE}),
    ):
        assert not is_same_reward(spec(FORMAT, ANSWER), other)


def test_a_gate_is_followed_by_the_rule_it_names():
    gated = spec(FORMAT, {**ANSWER, "only_if": GATE})
    renamed = {**ANSWER, "only_if": {**GATE, "rule": "tags"}}

    assert is_same_reward(gated, spec({**FORMAT, "name": "tags"}, renamed))
