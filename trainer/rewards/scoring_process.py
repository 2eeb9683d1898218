"""Children that score what they are sent, in order: for a run, or for a page."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from trainer.rewards.child import questions, send, take_over_stdout
from trainer.rewards.judge import TIMED_OUT, limited_to, seconds_left
from trainer.rewards.rule import Outcome, Params, Rule, Sample, Unscorable
from trainer.rewards.rules import RULES
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.scoring import Score, judge, row_errors, score_all
from trainer.rewards.spec import Recipe, RuleSpec

# Kind, parameters, and seconds for each completion that was judged.
Called = list[tuple[str, Params, float]]


def main() -> int:
    """Serve `trainer.rewards.workers`: a line when ready, and one for each part.

    A part is a list of completions that are judged together: one alone, or a group.
    """
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send(replies, {})
    for question in questions():
        rules = [RuleSpec.model_validate(rule) for rule in question["rules"]]
        for part in question["parts"]:
            send(replies, _reply(rules, [Sample(**fields) for fields in part]))
    return 0


def _reply(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> dict[str, Any]:
    try:
        return {"scores": [asdict(score) for score in judge(rules, samples)]}
    except Exception:  # noqa: BLE001 - the asker judges it itself, to meet it as it is
        return {"scores": None}


def main_of_trials() -> int:
    """Serve a page, which asks again at each change: also tell how long each rule took.

    A line when ready, and one for each group. No model is asked, since every question
    may cost money.
    """
    replies = take_over_stdout()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    called = time_rules()
    send(replies, {})
    for question in questions():
        recipe = Recipe.model_validate(question["recipe"])
        judged_by = read_row if question["reads_rows"] else score_all
        with limited_to(question["seconds"]), asking_for(question["owner"]):
            for group in question["groups"]:
                samples = [Sample(**fields) for fields in group]
                send(replies, reply_of(recipe, samples, judged_by, called))
    return 0


def time_rules() -> Called:
    """Put, from now on, each call of a rule into the list that is returned.

    In this process alone, and where rules are called, so that a total that leaves a
    rule out leaves out its time as well.
    """
    called: Called = []
    for kind, rule in list(RULES.items()):
        RULES[kind] = _timed(rule, called)
    return called


def _timed(rule: Rule[Any], called: Called) -> Rule[Any]:
    if rule.batching is not None:
        return replace(rule, batching=replace(rule.batching, score=_not_asked))

    def note(params: Params, begin: float, num_judged: int) -> None:
        called.append((rule.kind, params, (time.perf_counter() - begin) / num_judged))

    def score(sample: Sample, params: Params) -> float:
        begin = time.perf_counter()
        try:
            assert rule.score is not None
            return rule.score(sample, params)
        finally:
            note(params, begin, 1)

    def score_group(samples: Sequence[Sample], params: Params) -> Sequence[Outcome]:
        begin = time.perf_counter()
        try:
            assert rule.score_group is not None
            return rule.score_group(samples, params)
        finally:
            note(params, begin, len(samples))

    return replace(
        rule,
        score=score if rule.score else None,
        score_group=score_group if rule.score_group else None,
    )


def _not_asked(_: Sequence[Sample], __: Params) -> list[Outcome]:
    raise Unscorable(
        "Models are not called at each change, because a call may cost money. Press "
        "Score with models."
    )


def read_row(recipe: Recipe, samples: Sequence[Sample]) -> list[Score]:
    """Only why rules cannot judge a completion of the row."""
    return [Score(None, {}, row_errors(recipe, sample)) for sample in samples]


def reply_of(
    recipe: Recipe,
    samples: Sequence[Sample],
    judged_by: Callable[[Recipe, Sequence[Sample]], Sequence[Score]],
    called: Called,
) -> dict[str, Any]:
    called.clear()
    begin = time.perf_counter()
    try:
        scores = [asdict(score) for score in judged_by(recipe, samples)]
    except Exception as error:  # noqa: BLE001 - a fault of ours, to be shown where it is
        return {"problem": f"{type(error).__name__}: {error}"}
    if not seconds_left() and any(score["errors"] for score in scores):
        return {"problem": TIMED_OUT}  # not the rules' failure
    # Of one completion, the mean over those of the group.
    rule_seconds: dict[str, float] = {}
    for spec in recipe.rules:
        params = spec.checked_params()
        taken = [s for kind, used, s in called if (kind, used) == (spec.kind, params)]
        if taken:
            rule_seconds[spec.name] = statistics.fmean(taken)
    return {
        "scores": scores,
        "seconds": (time.perf_counter() - begin) / len(samples),
        "rule_seconds": rule_seconds,
    }


if __name__ == "__main__":
    sys.exit(main_of_trials() if sys.argv[1:] == ["trial"] else main())
