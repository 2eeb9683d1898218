"""A run's signals, each with what has changed and how far that stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from dashboard.insights.audit.changes import FEWEST, Change, find_change
from dashboard.insights.audit.measured import measure
from dashboard.insights.audit.signals import Signal
from dashboard.insights.audit.studied import Study, study
from dashboard.insights.audit.told import tell
from dashboard.insights.audit.words import Phrase, risen_phrases
from dashboard.runs.charts.chart import NOTE, has_clipped
from dashboard.runs.models import Run

CLEAR = 0.01  # chance
LARGE = 0.8  # effect, as Cohen calls it

# suspect: as where a reward is gamed; otherwise: clear as well, but the other way.
Status = Literal["suspect", "otherwise", "steady", "few", "aside", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    signal: Signal
    status: Status
    change: Change | None = None
    chance: float | None = None  # of the change's, for as many series as were tried

    @property
    def has_interval(self) -> bool:
        """Where a step was found that is no change, its interval says nothing."""
        is_clear = self.status in ("suspect", "otherwise")
        return self.change is not None and (is_clear or self.chance is None)

    @property
    def num_points(self) -> int:
        return 0 if self.signal.series is None else len(self.signal.series)


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """Of a run up to `last_step`; the rest says what was read of its completions."""

    last_step: int
    findings: tuple[Finding, ...]
    phrases: tuple[Phrase, ...]
    num_steps: int
    num_chosen: int
    num_between: int
    num_completions: int

    def find(self, key: str) -> Finding | None:
        return next((f for f in self.findings if f.signal.key == key), None)

    @property
    def num_suspect(self) -> int:
        return sum(finding.status == "suspect" for finding in self.findings)

    @property
    def note(self) -> str:
        series = [f.signal.series for f in self.findings if f.signal.series]
        return NOTE if any(has_clipped(each.values) for each in series) else ""

    @property
    def num_judged(self) -> int:
        judged = ("suspect", "otherwise", "steady")
        return sum(finding.status in judged for finding in self.findings)


def audit(run: Run, *, at: int | None = None, width: int | None = None) -> Audit:
    """Kept until the run has made another step."""
    return _audit_once(_Question(run, at, width))


class _Question:
    def __init__(self, run: Run, at: int | None, width: int | None) -> None:
        self.run, self.at, self.width = run, at, width
        self.key = (run.pk, run.epoch, run.last_step, run.state, at, width)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


# Of a run of 100,000 steps one takes 5 MB.
@lru_cache(maxsize=16)
def _audit_once(question: _Question) -> Audit:
    find = partial(find_change, at=question.at, width=question.width)
    run, studied = question.run, study(question.run)
    signals = [*measure(run), *tell(studied, find)]
    findings = tuple(
        judge(signal, None if signal.series is None else find(signal.series))
        for signal in signals
    )
    return Audit(
        last_step=run.last_step,
        findings=findings,
        phrases=tuple(_phrases(studied, findings)),
        num_steps=studied.num_steps,
        num_chosen=studied.num_chosen,
        num_between=studied.num_between,
        num_completions=studied.num_completions,
    )


def judge(signal: Signal, change: Change | None) -> Finding:
    """A change stands out where chance would make it less than once in 100 times and it
    is at least 0.8 of a point's own spread.

    Where the reader has said where to look, its interval must leave 0 out instead.
    """
    if signal.series is None:
        return Finding(signal=signal, status="missing")
    if change is None:
        is_few = len(signal.series) < FEWEST
        return Finding(signal=signal, status="few" if is_few else "aside")
    chance = change.chance
    if chance is not None:
        chance = min(1.0, chance * signal.num_tried)
    return Finding(
        signal=signal,
        status=_status(signal, change, chance),
        change=change,
        chance=chance,
    )


def _status(signal: Signal, change: Change, chance: float | None) -> Status:
    is_apart = not change.low <= 0 <= change.high
    is_clear = is_apart if chance is None else chance < CLEAR
    is_large = change.effect is None or abs(change.effect) >= LARGE
    if not (is_clear and is_large) or change.difference == 0:
        return "steady"
    went = "up" if change.difference > 0 else "down"
    return "suspect" if signal.suspect in (went, "either") else "otherwise"


def _phrases(studied: Study, findings: Sequence[Finding]) -> list[Phrase]:
    """What has become more common where phrases are shared most newly."""
    change = next(f.change for f in findings if f.signal.key == "shared")
    if change is None:
        return []
    before = studied.texts_of(change.before.first, change.before.last)
    after = studied.texts_of(change.after.first, change.after.last)
    return risen_phrases(before, after, studied.vocabulary)
