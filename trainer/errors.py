"""When so many scores of a step have failed that it must not be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainer.groups import Group


class ScoresMissing(Exception):
    """Too many scores failed; the text is for the user."""


def error_share(groups: Sequence[Group]) -> float:
    """The share of scores whose judgement failed, of those that were asked for.

    A rule that has nothing to judge a row by does not count.
    """
    failed = asked = 0
    for group in groups:
        for score in group.scores:
            failed += len(score.failed)
            asked += len(score.rules) - len(score.not_applicable)
    return failed / asked if asked else 0.0


def check_scores(groups: Sequence[Group], *, limit: float, step: int) -> None:
    """Raise ScoresMissing when more than this share of a step's scores failed."""
    share = error_share(groups)
    if share <= limit:
        return
    told = Counter(
        f'rule "{rule}": {score.errors[rule]}'
        for group in groups
        for score in group.scores
        for rule in score.failed
    )
    (most, count), *_ = told.most_common(1)
    raise ScoresMissing(
        f"{share:.0%} of the scores of step {step} failed; reward.max_error_share "
        f"allows {limit:.0%}. So the step was not trained on. Most often ({count:,} "
        f"times) {most} Mend what failed and resume from the last checkpoint, or raise "
        "reward.max_error_share."
    )
