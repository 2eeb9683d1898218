"""The kinds of jobs. Each app registers its own in its `jobs` or `tasks` module.

These modules are loaded when a kind is asked for first: a command that runs no job
needs none of what jobs need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from django.utils.module_loading import autodiscover_modules

if TYPE_CHECKING:
    from dashboard.jobs.runner import Context

_kinds: dict[str, Kind] = {}
_purges: list[Callable[[], object]] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What is done for a job of this name, and by which workers.

    Attributes:
        run: does the work; it is given back, cancelled and ended by `runner`.
        noun: the job in a sentence, as "import".
        queue: Celery's queue, whose workers do it.
        lane: jobs of one lane take turns, and a worker does one of them at a time, so
            that its other slots stay free; "" for the kind alone.
        is_alone: whether that holds; False where a slot is meant for such work.
        max_losses: after so many lost workers in a row the job fails.
        turn_seconds: after these a job gives way to another team's of its lane;
            with `yields_to_own_team` to any that waits.
        lease: without a heartbeat for so long, the worker is taken for lost.
    """

    name: str
    run: Callable[[Context], None]
    noun: str
    queue: str = "default"
    lane: str = ""
    is_alone: bool = True
    max_losses: int = 3
    turn_seconds: float | None = None
    yields_to_own_team: bool = False
    lease: timedelta = timedelta(seconds=20)


@cache
def _discover() -> None:
    autodiscover_modules("jobs", "tasks")


def register(kind: Kind) -> None:
    _kinds[kind.name] = kind


def register_purge(purge: Callable[[], object]) -> None:
    """Have it called each hour: it deletes what is too old."""
    _purges.append(purge)


def all_purges() -> Collection[Callable[[], object]]:
    _discover()
    return tuple(_purges)


def kind_of(name: str) -> Kind:
    """KeyError for a kind that this version of Cohort does not know."""
    _discover()
    return _kinds[name]


def all_kinds() -> Collection[Kind]:
    _discover()
    return _kinds.values()


def lanes_of(queue: str) -> list[str]:
    """In the order in which they were registered."""
    lanes = (lane_of(kind) for kind in all_kinds() if kind.queue == queue)
    return list(dict.fromkeys(lanes))


def names_of(lane: str) -> list[str]:
    return [kind.name for kind in all_kinds() if lane_of(kind) == lane]


def lane_of(kind: Kind) -> str:
    return kind.lane or kind.name
