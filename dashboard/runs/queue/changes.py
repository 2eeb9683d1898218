"""A team's part of the queue, and what people change about its order."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import F, Q

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.live.pubsub import notify_on_commit
from dashboard.runs.models import ENDED, Priority, Run, RunState
from dashboard.runs.queue.hosts import known_cluster, lack_on
from dashboard.runs.queue.messages import title_start
from dashboard.runs.queue.order import Queue, QueuePosition
from dashboard.runs.state import notify_workers
from dashboard.web.edits import find_changes


@transaction.atomic
def set_priority(*, run: Run, user: User, priority: Priority, base: str = "") -> bool:
    """False if it has ended or already has this priority.

    EditConflict: another was set since `base`.
    """
    before = Priority(
        Run.objects.select_for_update().only("priority").get(pk=run.pk).priority
    ).label
    if not find_changes({"priority": before}, {"priority": priority.label}, base):
        return False
    return _change(
        run,
        user,
        guard=~Q(state__in=ENDED),
        verb="run.priority_changed",
        detail={"before": before, "priority": priority.label},
        priority=priority,
    )


def hold_run(*, run: Run, user: User) -> bool:
    """Keep a queued run from workers; False if it is not queued or already on hold."""
    return _change(
        run,
        user,
        guard=Q(state=RunState.QUEUED, on_hold=False),
        verb="run.held",
        on_hold=True,
    )


@transaction.atomic
def release_run(*, run: Run, user: User) -> bool:
    """Let workers take it again; False if it was not on hold."""
    is_released = _change(
        run,
        user,
        guard=Q(state=RunState.QUEUED, on_hold=True),
        verb="run.released",
        on_hold=False,
    )
    if is_released:
        transaction.on_commit(notify_workers)
    return is_released


def _change(
    run: Run,
    user: User,
    *,
    guard: Q,
    verb: str,
    detail: dict[str, str] | None = None,
    **fields: object,
) -> bool:
    """Raises the stream number too, so that open pages see it at once."""
    with transaction.atomic():
        if not Run.objects.filter(guard, id=run.id).update(seq=F("seq") + 1, **fields):
            return False
        seq = Run.objects.values_list("seq", flat=True).get(id=run.id)
        record(run.team, user, verb, run, **(detail or {}))
        notify_on_commit(run.id, seq)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run of the team, with the number of other teams' runs ahead of it."""

    run: Run
    position: QueuePosition
    num_foreign: int  # between it and the team's run before it
    start: str
    cluster_lack: str  # of a run on a cluster, why it would wait there


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQueue:
    entries: list[Entry]
    num_foreign_after: int


def team_queue(team: Team, queue: Queue) -> TeamQueue:
    """List the team's runs; one query, two more if a run waits for a cluster."""
    queued = Run.objects.filter(team=team, id__in=queue.positions).select_related(
        "owner"
    )
    runs = [
        (run, queue.positions[run.id])
        for run in queued.defer("config", "summary", "metric_names")
    ]
    # The team's own order, which a hold does not change.
    runs.sort(key=lambda pair: pair[1].waiting.rank)
    needs_cluster = any(position.waiting.needs.ranks for _, position in runs)
    cluster = known_cluster(team) if needs_cluster else None
    entries, passed = [], 0
    for run, position in runs:
        num_foreign = (
            max(0, position.num_foreign_before - passed) if position.number else 0
        )
        passed += num_foreign
        ranks = position.waiting.needs.ranks
        entries.append(
            Entry(
                run=run,
                position=position,
                num_foreign=num_foreign,
                start=title_start(position.start),
                cluster_lack=lack_on(cluster, ranks) if ranks else "",
            )
        )
    num_passed = sum(entry.num_foreign for entry in entries)
    own = sum(entry.position.number is not None for entry in entries)
    return TeamQueue(
        entries=entries, num_foreign_after=queue.num_startable - own - num_passed
    )
