"""Error messages for users, and the explanation of failures."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.disk import is_disk_full
from trainer.events import ScoreFault
from trainer.rewards.workers import ScoringFailed
from trainer.tokenizers import first_line
from trainer.types import Group


class Diverged(Exception):
    """Training cannot go on; the text is for the user."""


@dataclass(frozen=True)
class Failure:
    """The error that ended a run, for its log."""

    sentence: str  # for the user
    details: str = ""  # a traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(explain(error), "".join(traceback.format_exception(error)))


def explain(error: BaseException) -> str:
    """Return the sentence for the user; ValueErrors and our own exceptions are one."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"Out of GPU memory: {first_line(error)} Lower optim.micro_batch_tokens "
            "or rollout.max_batch_rows, or turn model.gradient_checkpointing on."
        )
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return (
            "Out of memory. Lower optim.micro_batch_tokens or rollout.max_batch_rows, "
            "or choose a smaller model."
        )
    if is_disk_full(error):
        place = getattr(error, "filename", None) or "the run"
        return (
            f"The disk of {place} is full. Free some space, then resume from the last "
            "checkpoint."
        )
    if isinstance(error, ValueError | Diverged | ScoringFailed):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a tensor did not fit, on a GPU or on the machine."""
    # torch tells it of the machine's memory in a RuntimeError's text only
    says_so = "can't allocate memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or says_so


MAX_FAULTS = 5  # different ones that are reported
MAX_ERROR_CHARS = 1_000
MAX_ROWS = 4  # of a fault
NUMBER = re.compile(r"\d+")


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
            f"reward.max_error_share allows {limit:.0%}. The run skips this update "
            "and pauses."
        )


def error_share(groups: Sequence[Group]) -> float:
    """Return the share of scores whose judgement failed, of those that were asked for.

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
    """Return what rules failed of, the commonest first; at most 5 different ones.

    Errors that differ only in numbers are one, with the text of the first.
    """
    failed: list[tuple[tuple[str, str], int]] = []
    first_errors: dict[tuple[str, str], str] = {}
    for group in groups:
        for score in group.scores:
            for rule in score.failed:
                alike = rule, NUMBER.sub("0", score.errors[rule])
                error = first_errors.setdefault(alike, score.errors[rule])
                failed.append(((rule, error), group.prompt.index))
    counts = Counter(fault for fault, _ in failed)
    return [
        ScoreFault(
            rule=fault[0],
            error=fault[1][:MAX_ERROR_CHARS],
            count=count,
            rows=sorted({row for other, row in failed if other == fault})[:MAX_ROWS],
        )
        for fault, count in counts.most_common(MAX_FAULTS)
    ]
