"""The kinds of jobs. Each app registers its own in its `jobs` module."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

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
        turn_seconds: after these a job gives way to another of its lane that waits.
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
    lease: timedelta = timedelta(seconds=20)


def register(kind: Kind) -> None:
    _kinds[kind.name] = kind


def register_purge(purge: Callable[[], object]) -> None:
    """Have it called each hour: it deletes what is too old."""
    _purges.append(purge)


def all_purges() -> Collection[Callable[[], object]]:
    return tuple(_purges)


def kind_of(name: str) -> Kind:
    """KeyError for a kind that this version of Cohort does not know."""
    return _kinds[name]


def all_kinds() -> Collection[Kind]:
    return _kinds.values()


def lanes_of(queue: str) -> list[str]:
    """In the order in which they were registered."""
    lanes = (lane_of(kind) for kind in _kinds.values() if kind.queue == queue)
    return list(dict.fromkeys(lanes))


def names_of(lane: str) -> list[str]:
    return [kind.name for kind in _kinds.values() if lane_of(kind) == lane]


def lane_of(kind: Kind) -> str:
    return kind.lane or kind.name
