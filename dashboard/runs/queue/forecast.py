"""When waiting runs start, if the slots of workers come free as is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.runs.queue.hosts import Host
from dashboard.runs.queue.order import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Room for one run on a worker."""

    host: Host
    free_in: float | None  # seconds; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When a run starts; None where what it waits for gives no number."""

    seconds: float | None
    is_latest: bool = False  # another slot may come free before


UNKNOWN = Start(seconds=None)


def suits(host: Host, one: Waiting) -> bool:
    return one.run_id not in host.leaves and host.may_take(one.needs)


def forecast(
    order: Sequence[Waiting],
    slots: Sequence[Slot],
    takes: Mapping[int, float | None],
) -> dict[int, Start]:
    """By run, when it starts. `takes`: how many seconds each run takes, if known.

    Each run in turn takes the slot that suits it and comes free first. A slot that is
    taken for an unknown time is of no use to foretell what comes after.
    """
    free = [slot.free_in for slot in slots]
    starts = {}
    for one in order:
        fitting = [i for i, slot in enumerate(slots) if suits(slot.host, one)]
        known = {i: seconds for i in fitting if (seconds := free[i]) is not None}
        if not known:
            starts[one.run_id] = UNKNOWN
            continue
        first = min(known, key=known.__getitem__)
        seconds = known[first]
        starts[one.run_id] = Start(
            seconds=seconds, is_latest=seconds > 0 and len(known) < len(fitting)
        )
        took = takes.get(one.run_id)
        free[first] = None if took is None else seconds + took
    return starts
