"""Holding a run: one UPDATE claims it, its epoch fences off whoever held it before.

Times are the database's own, so workers' clocks do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from dashboard.runs.models import HELD, Epoch, Run, RunState
from dashboard.runs.queue.hosts import Host
from dashboard.runs.queue.order import STARTABLE, list_startable
from dashboard.runs.state import transition
from dashboard.training.draining import is_drained
from dashboard.training.models import Worker

LEASE = timedelta(seconds=60)
RENEW_SECONDS = 10.0
HOLDING = [RunState(state) for state in HELD]
WISHES = {
    RunState.STOPPING: "a stop was requested",
    RunState.PAUSING: "a pause was requested",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to write about a run, until somebody else claims it."""

    run_id: int
    epoch: int

    @property
    def guard(self) -> Q:
        return Q(epoch=self.epoch)


class Fenced(Exception):
    """Another attempt holds the run, so this one must write nothing more."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(
            f"Run {claim.run_id} is not held by attempt {claim.epoch} any more."
        )


def startable() -> QuerySet[Run]:
    """Queued runs that are not on hold and whose back-off is over."""
    return Run.objects.filter(STARTABLE)


def claim_next(host: Host, *, sees: Callable[[Run], bool]) -> Claim | None:
    """Claim the first in line that suits it and whose files it sees, unless drained."""
    if is_drained(host.name):
        return None
    suiting = [one for one in list_startable() if host.may_take(one.needs)]
    for one in suiting:
        run = Run.objects.filter(STARTABLE, id=one.run_id).first()
        if run and sees(run) and (claim := claim_run(run.id, host.name)):
            return claim
    return None


@transaction.atomic
def claim_run(run_id: int, worker: str) -> Claim | None:
    """Take one queued run; None when it is another's by now, or the worker drained."""
    is_mine = transition(
        run_id,
        sources=[RunState.QUEUED],
        target=RunState.STARTING,
        when=STARTABLE
        & ~Q(Exists(Worker.objects.filter(name=worker, drained_at__isnull=False))),
        detail={"worker": worker},
        epoch=F("epoch") + 1,
        worker=worker,
        lease_until=Now() + LEASE,
        not_before=None,
    )
    if not is_mine:
        return None
    # Our own UPDATE holds the row's lock, so this is the epoch it made.
    epoch = Run.objects.values_list("epoch", flat=True).get(id=run_id)
    Epoch.objects.create(run_id=run_id, number=epoch, worker=worker, claimed_at=Now())
    return Claim(run_id=run_id, epoch=epoch)


def renew(claim: Claim) -> RunState:
    """Hold it for another minute and hear what is wanted of it.

    An expired lease is renewed as well, as long as nobody took the run meanwhile:
    that is a database outage outlived.
    """
    held = Run.objects.filter(claim.guard, id=claim.run_id, state__in=HOLDING)
    if not held.update(lease_until=Now() + LEASE):
        raise Fenced(claim)
    return read_state(claim)


def read_state(claim: Claim) -> RunState:
    held = Run.objects.filter(claim.guard, id=claim.run_id, state__in=HOLDING)
    state = held.values_list("state", flat=True).first()
    if state is None:
        raise Fenced(claim)
    return RunState(state)


def close_epoch(run_id: int, number: int, outcome: str) -> None:
    lives = Epoch.objects.filter(run_id=run_id, number=number, ended_at__isnull=True)
    lives.update(ended_at=Now(), outcome=outcome[:200])
