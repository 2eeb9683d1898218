"""The judge's examples, put to an endpoint that can tell the two apart."""

from __future__ import annotations

from typing import Any

from tests.trainer.rewards.judge_server import Judging
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe, RuleSpec


def one_that_knows(asked: dict[str, Any]) -> str:
    question = asked["messages"][-1]["content"]
    assert "Why is the sky blue?" in question
    return "10" if "Air scatters blue light most." in question else "2"


def test_its_examples_pass_and_fail(judging: Judging) -> None:
    judging.reply = one_that_knows
    rule = RULES["llm_judge"]

    totals = []
    for example in (rule.example_pass, rule.example_fail):
        params = {**example.params, "base_url": judging.url}
        spec = RuleSpec(name="it", kind="llm_judge", params=params)
        totals.append(score_all(Recipe(rules=(spec,)), example.group)[0].total)

    assert totals == [1.0, 1 / 9]
