"""How often one run's completion of a prompt gets more reward than the other's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from django.db import connection

from dashboard.insights.duels.meetings import Meeting
from dashboard.insights.duels.pairs import delta_of
from dashboard.insights.statistics import Array, mean_interval, win_rate
from dashboard.runs.models import Run

REWARDS = """
    SELECT asked.prompt, packed.rewards
      FROM unnest(%s::int[], %s::int[]) AS asked(prompt, step)
      JOIN samples_group visit
        ON visit.run_id = %s AND visit.superseded_by IS NULL
       AND visit.prompt_index = asked.prompt AND visit.step = asked.step
      JOIN samples_groupcompletions packed ON packed.group_id = visit.id
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Duel:
    meeting: Meeting
    means: tuple[float | None, float | None]  # rewards of the two groups
    rate: float | None  # the first run's; None: a group has no rewards

    @property
    def delta(self) -> float | None:
        """The first run's mean reward less the second's."""
        return delta_of(*self.means)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Of all prompts; each counts once. The interval is of prompts, not of seeds."""

    num: int
    rate: float | None
    interval: tuple[float, float] | None


def read_duels(runs: tuple[Run, Run], meetings: Sequence[Meeting]) -> list[Duel]:
    """Two queries."""
    ours, theirs = (_rewards(run, meetings, i) for i, run in enumerate(runs))
    nothing = np.empty(0)
    return [
        make_duel(m, ours.get(m.prompts[0], nothing), theirs.get(m.prompts[1], nothing))
        for m in meetings
    ]


def make_duel(meeting: Meeting, ours: Array, theirs: Array) -> Duel:
    return Duel(
        meeting=meeting,
        means=(_mean(ours), _mean(theirs)),
        rate=win_rate(ours, theirs),
    )


def summarise(duels: Sequence[Duel]) -> Summary:
    rates = np.array([duel.rate for duel in duels if duel.rate is not None])
    if not len(rates):
        return Summary(num=0, rate=None, interval=None)
    found = mean_interval(rates[:, None])
    low, high = (max(0.0, float(found.low[0])), min(1.0, float(found.high[0])))
    return Summary(
        num=len(rates),
        rate=float(found.value[0]),
        interval=None if len(rates) < 2 else (low, high),
    )


SORTS: dict[str, Callable[[Duel], float | None]] = {
    "prompt": lambda duel: duel.meeting.prompts[0],
    "rate": lambda duel: duel.rate,
    "delta": lambda duel: duel.delta,
}


def sort_duels(duels: Sequence[Duel], sort: str) -> list[Duel]:
    """By `rate`, `-delta` …; those without a value come last."""
    key = SORTS[sort.removeprefix("-")]
    keyed = [(value, duel) for duel in duels if (value := key(duel)) is not None]
    keyed.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [duel for _, duel in keyed] + [duel for duel in duels if key(duel) is None]


def _rewards(run: Run, meetings: Sequence[Meeting], side: int) -> dict[int, Array]:
    asked = [[m.prompts[side] for m in meetings], [m.steps[side] for m in meetings]]
    with connection.cursor() as cursor:
        cursor.execute(REWARDS, [*asked, run.pk])
        return {
            prompt: np.array([r for r in rewards if r is not None], np.float64)
            for prompt, rewards in cursor
        }


def _mean(rewards: Array) -> float | None:
    return float(rewards.mean()) if len(rewards) else None
