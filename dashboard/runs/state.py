"""State transitions of a run: guarded UPDATEs, each audited."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest, Now
from django.dispatch import Signal

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.jobs.schedule import DAY_SECONDS, wake_workers
from dashboard.live.pubsub import notify_on_commit
from dashboard.runs.models import ENDED, HELD, Run, RunState

_S = RunState
# The web server's clock gave created_at, the database gives the end: they may differ.
END_TIME = Greatest(Now(), F("created_at"))
# Sent after the row changed, in the same transaction, with the current `run`.
run_moved = Signal()
EXTENDED = "run.extended"  # the only verb that restarts an ended run
TRANSITIONS: Mapping[RunState, frozenset[RunState]] = MappingProxyType(
    {
        # Each may stop at once: a fenced supervisor exits.
        _S.QUEUED: frozenset({_S.STARTING, _S.STOPPED, _S.FAILED}),
        # On a full disk it pauses before its first event.
        _S.STARTING: frozenset(
            {
                _S.RUNNING,
                _S.PAUSING,
                _S.PAUSED,
                _S.STOPPING,
                _S.STOPPED,
                _S.QUEUED,
                _S.LOST,
                _S.FAILED,
            }
        ),
        # A run whose scores fail, or whose disk is full, pauses by itself.
        _S.RUNNING: frozenset(
            {
                _S.PAUSING,
                _S.PAUSED,
                _S.STOPPING,
                _S.STOPPED,
                _S.QUEUED,
                _S.LOST,
                _S.FINISHED,
                _S.FAILED,
            }
        ),
        _S.PAUSING: frozenset(
            {_S.PAUSED, _S.STOPPING, _S.STOPPED, _S.LOST, _S.FINISHED, _S.FAILED}
        ),
        _S.PAUSED: frozenset({_S.QUEUED, _S.STOPPED}),
        # A stop during the last step may find the run finished.
        _S.STOPPING: frozenset({_S.STOPPED, _S.FINISHED, _S.LOST, _S.FAILED}),
        _S.LOST: frozenset({_S.QUEUED, _S.PAUSED, _S.STOPPED, _S.FAILED}),
        _S.FINISHED: frozenset({_S.QUEUED}),
        _S.STOPPED: frozenset({_S.QUEUED}),
        _S.FAILED: frozenset(),
    }
)
# An external trainer resumes by itself: its run is running again.
BY_ITSELF = frozenset({_S.LOST, *map(_S, ENDED)})


def transition(
    run_id: int,
    *,
    sources: Collection[RunState],
    target: RunState,
    when: Q | None = None,
    actor: User | None = None,
    verb: str | None = None,
    detail: Mapping[str, Any] | None = None,
    **fields: Any,
) -> bool:
    """Move the run to `target`; False if another process changed it first.

    `when` narrows the guard (a fence, a back-off), `fields` are set with the state. A
    state change also takes a stream number, so that up-to-date pages receive it.
    """
    guard = when or Q()
    if target == _S.RUNNING and BY_ITSELF.issuperset(sources):
        guard &= Q(source__has_key="kind")
        wrong = []
    else:
        wrong = [source for source in sources if target not in TRANSITIONS[source]]
    assert not wrong, f"No transition from {wrong} to {target}."
    assert verb == EXTENDED or not set(sources) & set(ENDED), f"{target} without verb"
    if target not in HELD:
        fields.setdefault("lease_until", None)
    with transaction.atomic():
        if not Run.objects.filter(guard, id=run_id, state__in=sources).update(
            state=target, seq=F("seq") + 1, **fields
        ):
            return False
        run = Run.objects.select_related("team").get(id=run_id)
        record(
            team=run.team,
            actor=actor,
            verb=verb or f"run.{target}",
            obj=run,
            **(detail or {}),
        )
        run_moved.send(Run, run=run)
        notify_on_commit(run.id, run.seq)
    return True


def notify_workers() -> None:
    """Wake a training worker. Best effort: the dispatcher polls every 5 s."""
    wake_workers("training.work", queue="training", expires=DAY_SECONDS)
