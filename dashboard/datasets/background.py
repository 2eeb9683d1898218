"""What would keep a page waiting is done by a worker, one thing at a time.

Teams take turns, and of a team few may wait, so that nobody who opens many pages keeps
the workers from anybody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Now

from dashboard.datasets.models import QueuedTask
from dashboard.waking import DAY_SECONDS, wake

logger = logging.getLogger(__name__)
MAX_OF_A_TEAM = 8
KEPT = timedelta(days=1)  # for how long it counts that a team was served
LOCK = 0x4C6F6F6B  # any number of our own, the same in every process


def put_in_line(name: str, pk: int, *, team_id: int) -> int:
    """Its place among what the team waits for, from 1; 0 where too much waits."""
    places = _waiting_of(team_id)
    if (name, pk) not in places:
        if len(places) >= MAX_OF_A_TEAM:
            return 0
        places.append((name, pk))
        QueuedTask.objects.filter(name=name, target=pk).delete()
        QueuedTask.objects.bulk_create(
            [QueuedTask(name=name, target=pk, team_id=team_id)], ignore_conflicts=True
        )
        transaction.on_commit(ring)
    return places.index((name, pk)) + 1


def waiting_text(name: str, pk: int, *, team_id: int) -> str:
    """For a page that waits; "" where a worker is at it."""
    places = _waiting_of(team_id)
    if (name, pk) in places:
        place = places.index((name, pk)) + 1
        return (
            f"It is number {place} of what your team waits for. Workers do one thing "
            "at a time, and teams take turns."
        )
    if len(places) >= MAX_OF_A_TEAM:
        return (
            f"Your team waits for {len(places)} others already, and no more may wait. "
            "This one is asked for as soon as one of them has been taken up; leave "
            "this page open, or come back later."
        )
    return ""


def _waiting_of(team_id: int) -> list[tuple[str, int]]:
    waiting = QueuedTask.objects.filter(team_id=team_id, taken_at=None)
    return list(waiting.order_by("pk").values_list("name", "target"))


def do_what_waits(
    makers: Mapping[str, Callable[[int], None]],
    *,
    worker: str,
    is_shutting_down: Callable[[], bool],
) -> None:
    """One after another, unless this worker is at it in another slot."""
    with alone(worker, lock=LOCK) as is_alone:
        while is_alone and not is_shutting_down() and (task := _take_next()):
            try:
                makers[task.name](task.target)
            except Exception:
                # A page that is still open asks for it again.
                logger.exception("%s of %s ended by a fault", task.name, task.target)


def tend() -> None:
    if QueuedTask.objects.filter(taken_at=None).exists():
        ring()


def forget_what_was_done() -> None:
    QueuedTask.objects.filter(taken_at__lt=Now() - KEPT).delete()


def ring() -> None:
    """Best effort: beat has it rung again every 5 s."""
    wake("datasets.look", queue="default", expires=DAY_SECONDS)


def _take_next() -> QueuedTask | None:
    """Of the team that was served longest ago, what it has waited for longest."""
    of_team = QueuedTask.objects.filter(team=OuterRef("team"), taken_at__isnull=False)
    served = of_team.order_by("-taken_at").values("taken_at")[:1]
    waiting = QueuedTask.objects.filter(taken_at=None).annotate(
        served_at=Subquery(served)
    )
    order = F("served_at").asc(nulls_first=True)
    for task in waiting.order_by(order, "pk")[:100]:
        same = QueuedTask.objects.filter(pk=task.pk, taken_at=None)
        if same.update(taken_at=Now()):
            return task
    return None


@contextmanager
def alone(worker: str, *, lock: int) -> Iterator[bool]:
    """Whether no other slot of this worker is at it. A lost connection unlocks it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [lock, worker])
        (is_alone,) = cursor.fetchone()
        try:
            yield is_alone
        finally:
            if is_alone:
                cursor.execute(
                    "SELECT pg_advisory_unlock(%s, hashtext(%s))", [lock, worker]
                )
