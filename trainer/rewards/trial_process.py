"""A child that scores what it is sent, in order, and tells how long each rule took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from trainer.rewards.answering import questions, send, take_over_stdout
from trainer.rewards.judge import limited_to
from trainer.rewards.rule import Params
from trainer.rewards.rules import RULES
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_completion
from trainer.rewards.spec import Recipe

Called = list[tuple[str, Params, float]]  # kind, parameters, seconds
ScoreOf = Callable[[Sample, Any], float]


def main() -> int:
    """A line when ready, and one for each sample, until standard input ends."""
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    called = time_rules()
    send(replies, {})
    for question in questions():
        recipe = Recipe.model_validate(question["recipe"])
        with limited_to(question["seconds"]):
            for fields in question["samples"]:
                send(replies, reply_of(recipe, Sample(**fields), called))
    return 0


def time_rules() -> Called:
    """From now on, put each call of a rule into the list that is returned.

    In this process alone, and where rules are called, so that a total that leaves a
    rule out leaves out its time as well.
    """
    called: Called = []
    for kind, rule in list(RULES.items()):
        if rule.score is not None:  # others judge whole groups, or are asked elsewhere
            RULES[kind] = replace(rule, score=_timed(kind, rule.score, called))
    return called


def _timed(kind: str, score: ScoreOf, called: Called) -> ScoreOf:
    def timed(sample: Sample, params: Params) -> float:
        begin = time.perf_counter()
        try:
            return score(sample, params)
        finally:
            called.append((kind, params, time.perf_counter() - begin))

    return timed


def reply_of(recipe: Recipe, sample: Sample, called: Called) -> dict[str, Any]:
    called.clear()
    begin = time.perf_counter()
    try:
        score = asdict(score_completion(recipe, sample))
    except Exception as error:  # noqa: BLE001 - a fault of ours, to be shown where it is
        return {"problem": f"{type(error).__name__}: {error}"}
    return {
        "score": score,
        "seconds": time.perf_counter() - begin,
        "rule_seconds": _seconds_by_name(recipe, called),
    }


def _seconds_by_name(recipe: Recipe, called: Called) -> dict[str, float]:
    found: dict[str, float] = {}
    for spec in recipe.rules:
        params = spec.checked_params()
        for kind, used, seconds in called:
            if kind == spec.kind and used == params:
                found[spec.name] = seconds
    return found


if __name__ == "__main__":
    sys.exit(main())
