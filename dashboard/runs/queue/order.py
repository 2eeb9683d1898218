"""Who goes first: a team's own runs by priority, then place; teams take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    F,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Now

from dashboard.runs.models import HELD, Run, RunState
from dashboard.runs.queue.hosts import Needs
from dashboard.runs.queue.pace import (
    CONFIG_COLUMNS,
    PACE_COLUMNS,
    Shape,
    config_of,
    own_step_seconds,
    shape_of,
)

# A place is unique: it is the id of one run, and changes hands only in pairs.
PLACE = Coalesce(F("place"), F("id"), output_field=BigIntegerField())
RESTED = Q(not_before__isnull=True) | Q(not_before__lte=Now())
STARTABLE = Q(state=RunState.QUEUED, on_hold=False) & RESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued run, as far as the order goes."""

    run_id: int
    team_id: int
    priority: int = 0
    place: int
    needs: Needs
    on_hold: bool = False
    is_resting: bool = False  # a while after its worker was lost
    num_left: int = 0  # steps
    step_seconds: float | None = None  # of its own latest steps
    shape: Shape | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Within its team, the first is the least."""
        return (-self.priority, self.place)


def take_turns(
    waiting: Iterable[Waiting], num_held: Mapping[int, int]
) -> list[Waiting]:
    """In the order in which free workers take them.

    Whose team has the fewest runs, those before it counted in, goes next; among equals
    the higher priority, then the older place. `num_held`: by team, runs on workers.
    """
    turns: Counter[int] = Counter(num_held)
    keyed = []
    for one in sorted(waiting, key=lambda one: one.rank):
        keyed.append(((turns[one.team_id], *one.rank), one))
        turns[one.team_id] += 1
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def list_waiting(runs: QuerySet[Run] | None = None) -> list[Waiting]:
    """Every queued run, of all teams; one query."""
    queued = (Run.objects.all() if runs is None else runs).filter(state=RunState.QUEUED)
    rows = queued.annotate(
        rank_place=PLACE,
        is_resting=Case(
            When(RESTED, then=Value(False)),
            default=Value(True),
            output_field=BooleanField(),
        ),
    ).values(
        *("id", "team_id", "priority", "rank_place", "on_hold", "is_resting"),
        *("num_steps", "last_step", *PACE_COLUMNS),
        *CONFIG_COLUMNS,
    )
    return [_read(row) for row in rows]


def _read(row: Mapping[str, Any]) -> Waiting:
    config = config_of(row)
    return Waiting(
        run_id=row["id"],
        team_id=row["team_id"],
        priority=row["priority"],
        place=row["rank_place"],
        needs=Needs.of(config),
        on_hold=row["on_hold"],
        is_resting=row["is_resting"],
        num_left=max(0, row["num_steps"] - row["last_step"]),
        step_seconds=own_step_seconds(row),
        shape=shape_of(config),
    )


def list_startable() -> list[Waiting]:
    """What free workers take, first to last; two queries."""
    return take_turns(list_waiting(Run.objects.filter(STARTABLE)), count_held())


def count_held() -> Counter[int]:
    """How many runs of each team are on workers; one query."""
    held = Run.objects.filter(state__in=HELD)
    return Counter(held.values_list("team_id", flat=True))
