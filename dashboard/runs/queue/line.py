"""The line in front of the workers: who waits, at which place, until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.runs.models import HELD, Run, RunState
from dashboard.runs.queue.forecast import UNKNOWN, Slot, Start, forecast, suits
from dashboard.runs.queue.hosts import Host, describe_lack, known_hosts
from dashboard.runs.queue.order import Waiting, list_waiting, take_turns
from dashboard.runs.queue.pace import (
    CONFIG_COLUMNS,
    PACE_COLUMNS,
    config_of,
    own_step_seconds,
    past_step_seconds,
    shape_of,
    steps_take,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of one queued run."""

    waiting: Waiting
    number: int | None = None  # from 1; None: it could not start now
    num_foreign_before: int = 0  # other teams' runs among those before it
    start: Start = UNKNOWN
    lack: str = ""  # why no worker that is alive would take it


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    places: dict[int, Place] = field(default_factory=dict)  # by run
    hosts: Sequence[Host] = ()
    num_busy: int = 0  # slots that hold a run
    num_startable: int = 0

    @property
    def num_slots(self) -> int:
        return sum(host.num_slots for host in self.hosts)


def read_line() -> Line:
    """The whole of it: four queries, three where nothing waits."""
    waiting = list_waiting()
    hosts = known_hosts()
    if not waiting:
        here = Run.objects.filter(worker__in=[host.name for host in hosts])
        return Line(hosts=hosts, num_busy=here.filter(state__in=HELD).count())
    held = list(Run.objects.filter(state__in=HELD).values(*HELD_FIELDS))
    shapes = {one.shape for one in waiting if one.shape and not one.step_seconds}
    shapes |= {shape_of(config_of(run)) for run in held if not own_step_seconds(run)}
    paces = past_step_seconds(shapes)
    slots = _slots(hosts, [(run["worker"], _left(run, paces)) for run in held])
    return _arrange(waiting, hosts, slots, held, paces)


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
) -> Line:
    lacks = {one.run_id: _lack(one, hosts) for one in waiting}
    # Without any worker the order stands all the same.
    startable = [
        one
        for one in waiting
        if not (one.on_hold or one.is_resting or (hosts and lacks[one.run_id]))
    ]
    order = take_turns(startable, Counter(run["team_id"] for run in held))
    takes = {
        one.run_id: steps_take(
            one.num_left,
            one.step_seconds or (paces.get(one.shape) if one.shape else None),
        )
        for one in order
    }
    starts = forecast(order, slots, takes)
    places = {one.run_id: Place(waiting=one, lack=lacks[one.run_id]) for one in waiting}
    passed: Counter[int] = Counter()
    for number, one in enumerate(order, start=1):
        places[one.run_id] = Place(
            waiting=one,
            number=number,
            num_foreign_before=number - 1 - passed[one.team_id],
            start=starts[one.run_id],
            lack=lacks[one.run_id],
        )
        passed[one.team_id] += 1
    return Line(
        places=places,
        hosts=hosts,
        num_busy=sum(slot.free_in != 0 for slot in slots),
        num_startable=len(order),
    )


def _lack(one: Waiting, hosts: Sequence[Host]) -> str:
    if lack := describe_lack(one.needs, hosts):
        return lack
    if any(suits(host, one) for host in hosts):
        return ""
    return (
        "No worker that suits it sees its checkpoint. Start one where it was trained, "
        "or give all of them the same COHORT_DATA folder."
    )


def _left(run: dict[str, Any], paces: dict[Any, float]) -> float | None:
    pace = own_step_seconds(run) or paces.get(shape_of(config_of(run)))
    leaves = run["state"] in (RunState.PAUSING, RunState.STOPPING)
    num_left = 1 if leaves else max(1, run["num_steps"] - run["last_step"])
    return steps_take(num_left, pace)


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
