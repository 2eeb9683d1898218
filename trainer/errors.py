"""When so many scores of a step have failed that it must not be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainer.events import ScoreFault
from trainer.types import Group

MAX_FAULTS = 5  # different ones that are told
MAX_ERROR_CHARS = 1_000


class ScoresMissing(Exception):
    """Too many scores of a step failed; the text is for the user."""

    def __init__(
        self, *, step: int, share: float, limit: float, faults: Sequence[ScoreFault]
    ) -> None:
        self.step = step
        self.share = share
        self.limit = limit
        self.faults = list(faults)  # the commonest first
        super().__init__(
            f"{share:.0%} of the scores of step {step:,} failed; "
            f"reward.max_error_share allows {limit:.0%}. So the step was not trained "
            "on, and the run pauses."
        )


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
    if share > limit:
        raise ScoresMissing(
            step=step, share=share, limit=limit, faults=common_faults(groups)
        )


def common_faults(groups: Sequence[Group]) -> list[ScoreFault]:
    """What rules failed of, the commonest first; at most 5 different ones."""
    told = Counter(
        (rule, score.errors[rule])
        for group in groups
        for score in group.scores
        for rule in score.failed
    )
    return [
        ScoreFault(rule=rule, error=error[:MAX_ERROR_CHARS], count=count)
        for (rule, error), count in told.most_common(MAX_FAULTS)
    ]
