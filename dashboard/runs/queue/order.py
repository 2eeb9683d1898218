"""The queue: its order, the position of each run, and when it starts.

A team's own runs are ordered by priority, then by age; teams take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import (
    BooleanField,
    Case,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Now

from dashboard.accounts.models import Team
from dashboard.runs.models import HELD, Run, RunState
from dashboard.runs.queue.estimates import (
    CONFIG_COLUMNS,
    PACE_COLUMNS,
    Shape,
    config_of,
    own_step_seconds,
    past_step_seconds,
    shape_of,
    steps_take,
)
from dashboard.runs.queue.hosts import Host, Needs, describe_lack, known_hosts
from trainer.config import RunConfig

RESTED = Q(not_before__isnull=True) | Q(not_before__lte=Now())
STARTABLE = Q(state=RunState.QUEUED, on_hold=False) & RESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued run, with what decides its order."""

    run_id: int
    team_id: int
    priority: int = 0
    needs: Needs
    on_hold: bool = False
    is_resting: bool = False  # in back-off after its worker was lost
    num_left: int = 0  # steps
    step_seconds: float | None = None  # of its own latest steps
    shape: Shape | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Within its team, the first is the least."""
        return (-self.priority, self.run_id)


def take_turns(
    waiting: Iterable[Waiting], num_held: Mapping[int, int]
) -> list[Waiting]:
    """Sort runs in the order in which free workers take them.

    The team with the fewest runs, including those already ordered, is next; ties go to
    the higher priority, then the older run. `num_held`: by team, runs on workers.
    """
    turns: Counter[int] = Counter(num_held)
    keyed = []
    for queued in sorted(waiting, key=lambda queued: queued.rank):
        keyed.append(((turns[queued.team_id], *queued.rank), queued))
        turns[queued.team_id] += 1
    return [queued for _, queued in sorted(keyed, key=lambda pair: pair[0])]


def list_waiting(runs: QuerySet[Run] | None = None) -> list[Waiting]:
    """List every queued run, of all teams; one query."""
    queued = (Run.objects.all() if runs is None else runs).filter(state=RunState.QUEUED)
    rows = queued.annotate(
        is_resting=Case(
            When(RESTED, then=Value(False)),
            default=Value(True),
            output_field=BooleanField(),
        ),
    ).values(
        *("id", "team_id", "priority", "on_hold", "is_resting"),
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
        needs=Needs.of(config),
        on_hold=row["on_hold"],
        is_resting=row["is_resting"],
        num_left=max(0, row["num_steps"] - row["last_step"]),
        step_seconds=own_step_seconds(row),
        shape=shape_of(config),
    )


def list_startable() -> list[Waiting]:
    """List the runs that free workers take, in order; two queries."""
    held = Run.objects.filter(state__in=HELD).values_list("team_id", flat=True)
    return take_turns(list_waiting(Run.objects.filter(STARTABLE)), Counter(held))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Capacity for one run on a worker."""

    host: Host
    free_in: float | None  # seconds; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When a run starts; None if there is no estimate."""

    seconds: float | None
    is_latest: bool = False  # another slot may come free before


UNKNOWN = Start(seconds=None)


def suits(host: Host, queued: Waiting) -> bool:
    return queued.run_id not in host.leaves and host.may_take(queued.needs)


def forecast(
    order: Sequence[Waiting],
    slots: Sequence[Slot],
    takes: Mapping[int, float | None],
) -> dict[int, Start]:
    """Estimate when each run starts. `takes`: seconds that each run takes, if known.

    Each run in turn takes the suitable slot that is free first. A slot that is taken
    for an unknown time gives no estimate for later runs.
    """
    free = [slot.free_in for slot in slots]
    starts = {}
    for queued in order:
        fitting = [i for i, slot in enumerate(slots) if suits(slot.host, queued)]
        seconds_by_place = {
            i: seconds for i in fitting if (seconds := free[i]) is not None
        }
        if not seconds_by_place:
            starts[queued.run_id] = UNKNOWN
            continue
        first = min(seconds_by_place, key=seconds_by_place.__getitem__)
        seconds = seconds_by_place[first]
        starts[queued.run_id] = Start(
            seconds=seconds,
            is_latest=seconds > 0 and len(seconds_by_place) < len(fitting),
        )
        took = takes.get(queued.run_id)
        free[first] = None if took is None else seconds + took
    return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The position of a queued run."""

    waiting: Waiting
    number: int | None = None  # from 1; None: it could not start now
    num_foreign_before: int = 0  # other teams' runs among those before it
    start: Start = UNKNOWN
    lack: str = ""  # why no live worker would take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    positions: dict[int, QueuePosition] = field(default_factory=dict)  # by run
    hosts: Sequence[Host] = ()
    num_busy: int = 0  # slots that hold a run
    num_startable: int = 0

    @property
    def num_slots(self) -> int:
        return sum(host.num_slots for host in self.hosts)


NEW_RUN = 2**62  # stands last among the runs of its team


def seconds_until_free() -> float | None:
    """Estimate when the next slot is free of the runs that hold it; None: unknown."""
    held = list(Run.objects.filter(state__in=HELD).values(*HELD_FIELDS))
    paces = past_step_seconds({shape_of(config_of(run)) for run in held})
    lefts = [(run["worker"], _left(run, paces)) for run in held]
    known = [slot.free_in for slot in _slots(known_hosts(), lefts)]
    return min((seconds for seconds in known if seconds is not None), default=None)


def start_of_new(team: Team, config: RunConfig) -> Start:
    """Estimate when a run starts that is launched now."""
    tree = config.model_dump(mode="json")
    new = Waiting(run_id=NEW_RUN, team_id=team.pk, needs=Needs.of(tree))
    return read_queue(new).positions[NEW_RUN].start


def read_queue(new: Waiting | None = None) -> Queue:
    """Read all of it, and a new run: four queries, three if no run waits."""
    waiting = list_waiting()
    if new is not None:
        waiting.append(new)
    hosts = known_hosts()
    if not waiting:
        here = Run.objects.filter(worker__in=[host.name for host in hosts])
        return Queue(hosts=hosts, num_busy=here.filter(state__in=HELD).count())
    held = list(Run.objects.filter(state__in=HELD).values(*HELD_FIELDS))
    shapes = {
        queued.shape for queued in waiting if queued.shape and not queued.step_seconds
    }
    shapes |= {shape_of(config_of(run)) for run in held if not own_step_seconds(run)}
    paces = past_step_seconds(shapes)
    return _arrange(
        waiting,
        hosts,
        _slots(hosts, [(run["worker"], _left(run, paces)) for run in held]),
        held,
        paces,
    )


HELD_FIELDS = (
    *("team_id", "worker", "state", "num_steps", "last_step"),
    *(*PACE_COLUMNS, *CONFIG_COLUMNS),
)


def _arrange(
    waiting: list[Waiting],
    hosts: list[Host],
    slots: list[Slot],
    held: list[dict[str, Any]],
    paces: dict[Any, float],
) -> Queue:
    lacks = {queued.run_id: _lack(queued, hosts) for queued in waiting}
    # The order does not depend on workers.
    startable = [
        queued
        for queued in waiting
        if not (queued.on_hold or queued.is_resting or (hosts and lacks[queued.run_id]))
    ]
    order = take_turns(startable, Counter(run["team_id"] for run in held))
    takes = {
        queued.run_id: steps_take(
            queued.num_left,
            queued.step_seconds or (paces.get(queued.shape) if queued.shape else None),
        )
        for queued in order
    }
    starts = forecast(order, slots, takes)
    positions = {
        queued.run_id: QueuePosition(waiting=queued, lack=lacks[queued.run_id])
        for queued in waiting
    }
    passed: Counter[int] = Counter()
    for number, queued in enumerate(order, start=1):
        positions[queued.run_id] = QueuePosition(
            waiting=queued,
            number=number,
            num_foreign_before=number - 1 - passed[queued.team_id],
            start=starts[queued.run_id],
            lack=lacks[queued.run_id],
        )
        passed[queued.team_id] += 1
    return Queue(
        positions=positions,
        hosts=hosts,
        num_busy=sum(slot.free_in != 0 for slot in slots),
        num_startable=len(order),
    )


def _lack(queued: Waiting, hosts: Sequence[Host]) -> str:
    if lack := describe_lack(queued.needs, hosts):
        return lack
    if any(suits(host, queued) for host in hosts):
        return ""
    return (
        "No suitable worker can read its checkpoint. Start one on the machine that "
        "trained it, or give all workers the same COHORT_DATA folder."
    )


def _left(run: dict[str, Any], paces: dict[Any, float]) -> float | None:
    pace = own_step_seconds(run) or paces.get(shape_of(config_of(run)))
    leaves = run["state"] in (RunState.PAUSING, RunState.STOPPING)
    return steps_take(
        1 if leaves else max(1, run["num_steps"] - run["last_step"]), pace
    )


def _slots(
    hosts: Sequence[Host], held: Sequence[tuple[str, float | None]]
) -> list[Slot]:
    """`held`: for each run on a worker, the worker's name and the seconds left."""
    slots = []
    for host in hosts:
        here = [left for worker, left in held if worker == host.name]
        num_free = max(0, host.num_slots - len(here))
        slots += [Slot(host=host, free_in=left) for left in here]
        slots += [Slot(host=host, free_in=0.0)] * num_free
    return slots
