"""Scoring completions with a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainer.rewards.composition import parts_of, reward_of
from trainer.rewards.logs import keeping
from trainer.rewards.rule import Outcome
from trainer.rewards.rules import RULES
from trainer.rewards.sample import NotApplicable, Sample, Unscorable, replace_surrogates
from trainer.rewards.spec import Recipe, RuleSpec

__all__ = [
    "Sample",
    "Score",
    "judge",
    "row_errors",
    "score_all",
    "score_completion",
    "weigh",
]


@dataclass(frozen=True)
class Score:
    """A completion's reward, and what each rule scored: before clip, gate and weight.

    `None` is no score and never 0, and `errors` says why. It is nobody's fault where
    the rule is among the `not_applicable`: the row has nothing for it to judge by.
    `total` is None when no rule's score counts. `logs` has what rules printed.

    >>> Score(1.05, {"format": 0.5, "answer": 1.0}, {})  # weights 0.1 and 1
    """

    total: float | None
    rules: dict[str, float | None]
    errors: dict[str, str]
    not_applicable: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Rules whose judgement failed."""
        return [name for name in self.errors if name not in self.not_applicable]


def score_completion(recipe: Recipe, sample: Sample, *, step: int = 1) -> Score:
    """The score of a completion by itself, by the weights of a step of the run.

    Never raises for anything a completion, an answer or a column holds.
    """
    return score_all(recipe, [sample], step=step)[0]


def score_all(
    recipe: Recipe, samples: Iterable[Sample], *, step: int = 1
) -> list[Score]:
    """One score for each completion of one prompt, in order."""
    return [
        weigh(recipe, score, step=step) for score in judge(recipe.rules, list(samples))
    ]


def judge(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> list[Score]:
    """What rules say of the completions of one prompt; their totals are None."""
    samples = [prepared(sample) for sample in samples]
    outcomes: list[dict[str, Outcome]] = [{} for _ in samples]
    logs: list[dict[str, str]] = [{} for _ in samples]
    for spec in rules:
        found = _outcomes(spec, samples)
        for place, (outcome, printed) in enumerate(found):
            outcomes[place][spec.name] = outcome
            if printed:
                logs[place][spec.name] = printed
    return [
        replace(as_score(found), logs=printed)
        for found, printed in zip(outcomes, logs, strict=True)
    ]


def _outcomes(
    spec: RuleSpec, samples: Sequence[Sample]
) -> Iterator[tuple[Outcome, str]]:
    """What a rule says of each completion, and what it printed meanwhile."""
    rule, params = RULES[spec.kind], spec.checked_params()
    if not rule.needs_sandbox:
        found = rule.judge(samples, params)
        assert len(found) == len(samples)
        yield from ((outcome, "") for outcome in found)
        return
    for sample in samples:
        with keeping() as printed:
            (outcome,) = rule.judge([sample], params)
        yield outcome, "".join(printed)


def row_errors(recipe: Recipe, sample: Sample) -> dict[str, str]:
    """Why rules could not judge a completion of a row; models are not asked for it."""
    asking = [spec for spec in recipe.rules if RULES[spec.kind].batching is not None]
    own = [spec for spec in recipe.rules if spec not in asking]
    errors = judge(own, [sample] * 2)[0].errors  # twice, for rules that compare
    for spec in asking:
        check = RULES[spec.kind].check_row
        if check is None:
            continue
        try:
            check(prepared(sample), spec.checked_params())
        except Unscorable as error:
            errors[spec.name] = str(error)
    return errors


def weigh(recipe: Recipe, score: Score, *, step: int) -> Score:
    """The score with the reward that follows, its rules in the recipe's order."""
    parts = parts_of(recipe, score.rules, step=step)
    return replace(
        score,
        total=reward_of(recipe, parts, failed=score.failed),
        rules={spec.name: score.rules[spec.name] for spec in recipe.rules},
    )


def joined(scores: Sequence[Score]) -> Score:
    """What several rules said of one completion, each in a score of its own."""
    rules: dict[str, float | None] = {}
    errors: dict[str, str] = {}
    not_applicable: list[str] = []
    logs: dict[str, str] = {}
    for score in scores:
        rules |= score.rules
        errors |= score.errors
        not_applicable += score.not_applicable
        logs |= score.logs
    return Score(None, rules, errors, not_applicable, logs)


def as_score(outcomes: Mapping[str, Outcome]) -> Score:
    """What each rule said of one completion."""
    for name, outcome in outcomes.items():
        assert isinstance(outcome, Unscorable) or math.isfinite(outcome), (
            f"{name} gave {outcome}"
        )
    missing = {name: o for name, o in outcomes.items() if isinstance(o, Unscorable)}
    return Score(
        None,
        {n: None if isinstance(o, Unscorable) else o for n, o in outcomes.items()},
        {name: str(error) for name, error in missing.items()},
        [name for name, error in missing.items() if isinstance(error, NotApplicable)],
    )


def prepared(sample: Sample) -> Sample:
    """A token cut in two can decode to half a surrogate pair, which is no UTF-8."""
    answer = sample.answer
    return replace(
        sample,
        completion=replace_surrogates(sample.completion),
        answer=None if answer is None else replace_surrogates(answer),
    )


# Its part in the breakdown of a reward, beside the rules'; its weight is 1.
OVERLONG = "overlong"


def overlong_fraction(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """How far a completion has come through the buffer before the limit, 0 to 1.

    clip((n - (limit - buffer)) / buffer, 0, 1) (arXiv:2503.14476, section 3.4).

    >>> overlong_fraction(90, max_new_tokens=100, buffer=20)
    0.5
    """
    inside = num_tokens - (max_new_tokens - buffer)
    return min(max(inside / buffer, 0.0), 1.0)


def penalised(
    score: Score, num_tokens: int, *, max_new_tokens: int, buffer: int, penalty: float
) -> Score:
    """The score less `penalty` times the completion's fraction; buffer 0: as it is.

    The penalty stands in the breakdown, so that its parts still add up to the reward.
    A completion without a score stays without one.
    """
    if buffer == 0 or score.total is None:
        return score
    fraction = overlong_fraction(
        num_tokens, max_new_tokens=max_new_tokens, buffer=buffer
    )
    part = 0.0 - penalty * fraction
    return replace(
        score, total=score.total + part, rules=score.rules | {OVERLONG: part}
    )
