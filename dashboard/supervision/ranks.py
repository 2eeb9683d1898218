"""What each process of a run used last, and which of them is slow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

from django.utils import timezone

from dashboard.project.database import clean_json
from dashboard.runs.models import Run
from dashboard.supervision.models import RunRanks
from trainer.events import Event, RanksMeasured

# The own work of so many steps is kept, and its median compared.
KEPT_STEPS = 30
# Fewer say nothing: first steps compile kernels and fill caches.
LEAST_STEPS = 5
SLOW_FACTOR = 1.2
PHASES = {
    "generate": "Generate",
    "score": "Score",
    "logprobs": "Log-probs",
    "update": "Update",
    "sync": "Sync",
}


def store_ranks(run_id: int, events: Iterable[Event]) -> None:
    """Keep the newest values and the work of the last steps in the run's one row.

    Two queries if there are any, in the transaction that holds the run.
    """
    measured = [event for event in events if isinstance(event, RanksMeasured)]
    if not measured:
        return
    row = RunRanks.objects.filter(run_id=run_id).first() or RunRanks(run_id=run_id)
    for event in measured:
        if row.attempt > event.attempt:
            continue
        if row.attempt != event.attempt or len(row.ranks) != len(event.ranks):
            row.work = []
        # Through pydantic's JSON, where a number that is not finite is null.
        tree = json.loads(event.model_dump_json(include={"ranks"}))
        row.attempt, row.step = event.attempt, event.step
        row.ranks = clean_json(tree)["ranks"]
        own = [rank["seconds"].get("work") for rank in row.ranks]
        row.work = [*row.work, own][-KEPT_STEPS:]
        row.measured_at = timezone.now()
    row.save()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A process of a run, as the page Metrics shows it; times in seconds."""

    rank: int
    node: str
    device: str
    memory_bytes: int | None
    memory_total_bytes: int | None
    phases: list[float | None]  # of the newest step, as PHASES
    wait: float | None
    work: float | None  # median of the last steps
    ratio: float | None  # to the median rank's
    is_slow: bool

    @property
    def percent(self) -> float | None:
        """The used share of its memory."""
        if self.memory_bytes is None or not self.memory_total_bytes:
            return None
        return 100 * self.memory_bytes / self.memory_total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    attempt: int
    step: int
    num_steps: int  # that the medians are of
    step_seconds: float | None
    median: float | None  # of the ranks' work
    rows: list[RankRow]

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(row.node for row in self.rows))

    @property
    def slow(self) -> list[RankRow]:
        """The slowest first."""
        return sorted(
            [row for row in self.rows if row.is_slow], key=lambda row: -(row.work or 0)
        )


def read_ranks(run: Run) -> Ranks | None:
    """Read the ranks; None for a run of one process, and before the first step; one
    query.
    """
    row = RunRanks.objects.filter(run=run).first()
    return None if row is None else describe_ranks(row)


def newest_step(run: Run) -> str:
    """Attempt and step of the newest values, "" before the first; one query."""
    newest = RunRanks.objects.filter(run=run).values_list("attempt", "step").first()
    return "" if newest is None else f"{newest[0]}-{newest[1]}"


def describe_ranks(row: RunRanks) -> Ranks:
    medians = [_median(own) for own in zip(*row.work, strict=True)]
    measured = [seconds for seconds in medians if seconds is not None]
    # Of two, the faster one: else the slow one would be compared with half itself.
    usual = median_low(measured) if measured else None
    steps = [rank["seconds"].get("step") for rank in row.ranks]
    return Ranks(
        attempt=row.attempt,
        step=row.step,
        num_steps=len(row.work),
        step_seconds=max(
            (seconds for seconds in steps if seconds is not None), default=None
        ),
        median=usual,
        rows=[
            _row(number, rank, work, usual, is_early=len(row.work) < LEAST_STEPS)
            for number, (rank, work) in enumerate(zip(row.ranks, medians, strict=True))
        ],
    )


def _row(
    number: int,
    rank: dict[str, Any],
    work: float | None,
    usual: float | None,
    *,
    is_early: bool,
) -> RankRow:
    seconds = rank["seconds"]
    ratio = work / usual if work is not None and usual else None
    return RankRow(
        rank=number,
        node=rank["node"],
        device=rank["device"],
        memory_bytes=rank["memory_bytes"],
        memory_total_bytes=rank["memory_total_bytes"],
        phases=[seconds.get(name) for name in PHASES],
        wait=seconds.get("wait"),
        work=work,
        ratio=ratio,
        is_slow=not is_early and ratio is not None and ratio > SLOW_FACTOR,
    )


def _median(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
