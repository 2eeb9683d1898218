"""Holding a run: one UPDATE claims it, and its attempt number fences off earlier
holders.

Then losing it, and finding runs whose worker is gone. All times are the database's, so
workers' clocks do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Case, Exists, F, Q, QuerySet, When
from django.db.models.functions import Now

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.database import fetch_all
from dashboard.runs.models import HELD, Run, RunAttempt, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import Host
from dashboard.runs.queue.order import STARTABLE, list_startable
from dashboard.runs.state import END_TIME, transition
from dashboard.supervision.event_log import SHOWN_LINES, read_tail, with_tail
from dashboard.supervision.models import ReaperWatch, Worker

LEASE = timedelta(seconds=60)
RENEW_SECONDS = 10.0
HOLDING = [RunState(state) for state in HELD]
REQUESTS = {
    RunState.STOPPING: "stop requested",
    RunState.PAUSING: "pause requested",
}
MAX_LOSSES = 3
ENDING = [RunState.STARTING, RunState.RUNNING, RunState.PAUSING, RunState.STOPPING]
ADVISORY_LOCK = 0x436F686F  # any number of our own, the same in every process
DELETE_AFTER = timedelta(days=7)
# After such a gap a lease may have expired that was fresh at the check before.
GAP = LEASE - timedelta(seconds=2 * RENEW_SECONDS)
# Every running supervisor renews within it.
TURN = timedelta(seconds=RENEW_SECONDS + 2)


@transaction.atomic
def drain(worker: Worker, *, team: Team, user: User) -> bool:
    """False when it was drained already."""
    if not Worker.objects.filter(pk=worker.pk, drained_at__isnull=True).update(
        drained_at=Now(), drained_by=user
    ):
        return False
    record(team, user, "worker.drained", worker, name=worker.name)
    return True


@transaction.atomic
def undrain(worker: Worker, *, team: Team, user: User) -> bool:
    """False when it was not drained."""
    if not Worker.objects.filter(pk=worker.pk, drained_at__isnull=False).update(
        drained_at=None, drained_by=None
    ):
        return False
    record(team, user, "worker.undrained", worker, name=worker.name)
    return True


def is_drained(name: str) -> bool:
    return Worker.objects.filter(name=name, drained_at__isnull=False).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to write about a run, until another worker claims it."""

    run_id: int
    attempt: int

    @property
    def guard(self) -> Q:
        return Q(attempt=self.attempt)


class LeaseLost(Exception):
    """Another attempt holds the run, so this one must not write any more."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"Attempt {claim.attempt} no longer holds run {claim.run_id}.")


def startable() -> QuerySet[Run]:
    """Queued runs that are not on hold and whose back-off has passed."""
    return Run.objects.filter(STARTABLE)


def claim_next(host: Host, *, sees: Callable[[Run], bool]) -> Claim | None:
    """Claim the first queued run that fits and is readable, unless drained."""
    if is_drained(host.name):
        return None
    suiting = [queued for queued in list_startable() if host.may_take(queued.needs)]
    for queued in suiting:
        run = Run.objects.filter(STARTABLE, id=queued.run_id).first()
        if run and sees(run) and (claim := claim_run(run.id, host.name)):
            return claim
    return None


@transaction.atomic
def claim_run(run_id: int, worker: str) -> Claim | None:
    """Claim one queued run; None if another worker was faster or this one drained."""
    is_mine = transition(
        run_id,
        sources=[RunState.QUEUED],
        target=RunState.STARTING,
        when=STARTABLE
        & ~Q(Exists(Worker.objects.filter(name=worker, drained_at__isnull=False))),
        detail={"worker": worker},
        attempt=F("attempt") + 1,
        worker=worker,
        lease_until=Now() + LEASE,
        not_before=None,
    )
    if not is_mine:
        return None
    # Our UPDATE holds the row's lock, so this is the attempt that it set.
    attempt = Run.objects.values_list("attempt", flat=True).get(id=run_id)
    RunAttempt.objects.create(
        run_id=run_id, number=attempt, worker=worker, claimed_at=Now()
    )
    return Claim(run_id=run_id, attempt=attempt)


def renew(claim: Claim, *, silent_for: timedelta = timedelta()) -> RunState:
    """Hold it for another minute and return its state.

    `silent_for`: the time since the trainer's last sign of progress.

    An expired lease is renewed as well if no other worker took the run, as after a
    database outage.
    """
    if not Run.objects.filter(claim.guard, id=claim.run_id, state__in=HOLDING).update(
        lease_until=Now() + LEASE, active_at=Now() - silent_for
    ):
        raise LeaseLost(claim)
    return read_state(claim)


def lock_run(claim: Claim) -> Run:
    """Lock the run until the end of the transaction."""
    run = (
        Run.objects.select_for_update()
        .filter(claim.guard, id=claim.run_id, state__in=HOLDING)
        .first()
    )
    if run is None:
        raise LeaseLost(claim)
    return run


def read_state(claim: Claim) -> RunState:
    state = (
        Run.objects.filter(claim.guard, id=claim.run_id, state__in=HOLDING)
        .values_list("state", flat=True)
        .first()
    )
    if state is None:
        raise LeaseLost(claim)
    return RunState(state)


def close_attempt(run_id: int, number: int, outcome: str) -> None:
    RunAttempt.objects.filter(run_id=run_id, number=number, ended_at=None).update(
        ended_at=Now(), outcome=outcome[:200]
    )


# Losing a run.


@transaction.atomic
def lose_attempt(run: Run, *, outcome: str, advice: str = "") -> bool:
    """Requeue a held run after a back-off; at the fourth loss in a row it fails.

    `advice` says what to do then.

    If a stop was requested the run is stopped instead, and if a pause was requested it
    is paused at its last checkpoint. An external run stays lost. False if another
    process was faster. `run` may be stale except for its attempt.
    """
    locked = (
        Run.objects.select_for_update()
        .filter(id=run.id, attempt=run.attempt, state__in=HOLDING)
        .first()
    )
    if locked is None:
        return False
    run = locked
    transition(
        run.id,
        sources=[RunState(run.state)],
        target=RunState.LOST,
        detail={"outcome": outcome, "attempt": run.attempt},
        lease_until=run.lease_until,  # its last contact, as the page tells it
    )
    close_attempt(run.id, run.attempt, outcome)
    if run.is_external:
        return True  # its trainer's next request continues it
    if run.state == RunState.STOPPING:
        return transition(
            run.id,
            sources=[RunState.LOST],
            target=RunState.STOPPED,
            finished_at=END_TIME,
        )
    if run.state == RunState.PAUSING:
        return transition(run.id, sources=[RunState.LOST], target=RunState.PAUSED)
    if run.num_losses >= MAX_LOSSES:
        reason = (
            f"The run was lost {run.num_losses + 1} times in a row without a new "
            f"checkpoint, so Cohort did not restart it. Last outcome: {outcome}. "
            f"{advice}".rstrip()
        )
        lines: list[str] = []
        log = run_directory(run.id).attempt(run.attempt).trainer_log
        with suppress(OSError):  # this host may not see it
            lines = read_tail(log, max_lines=SHOWN_LINES)
        return fail(run.id, with_tail(reason, lines))
    return transition(
        run.id,
        sources=[RunState.LOST],
        target=RunState.QUEUED,
        num_losses=run.num_losses + 1,
        # 10 s, 30 s and 90 s after the first, second and third loss.
        not_before=Now() + timedelta(seconds=10 * 3**run.num_losses),
    )


def fail(run_id: int, reason: str) -> bool:
    """`reason` is a sentence for the run's owner."""
    return transition(
        run_id,
        sources=[RunState.LOST, *ENDING],
        target=RunState.FAILED,
        detail={"reason": reason[:2_000]},
        fail_reason=reason,
        finished_at=END_TIME,
    )


# Reaping runs whose worker is lost.


@transaction.atomic
def reap(*, grace: timedelta = LEASE) -> list[int]:
    """Requeue or end every run whose lease has expired; returns their IDs.

    Idempotent: a second caller finds the lock taken or the run changed. After the
    database starts, supervisors have `grace` to report again; after a gap without
    checks, as when the machine slept, they have one renewal interval.
    """
    ((is_alone, uptime),) = fetch_all(
        "SELECT pg_try_advisory_xact_lock(%s), now() - pg_postmaster_start_time()",
        [ADVISORY_LOCK],
    )
    if not is_alone or not _watches_for(min(grace, TURN)) or uptime < grace:
        return []
    expired = Run.objects.select_for_update(skip_locked=True).filter(
        state__in=HOLDING, lease_until__lt=Now()
    )
    lost = []
    for run in expired:
        holder = "trainer" if run.is_external else f"worker {run.worker}"
        if lose_attempt(run, outcome=f"no contact with its {holder}"):
            lost.append(run.id)
    Worker.objects.filter(last_seen__lt=Now() - DELETE_AFTER).delete()
    return lost


def _watches_for(grace: timedelta) -> bool:
    """Record this check, and nothing else.

    A suspended machine stops supervisors' clocks, not the database's: they get time to
    renew. Two gaps in a row do not count, or checks that always come late would never
    find lost runs.
    """
    watch = ReaperWatch.objects.filter(id=1)
    ReaperWatch.objects.get_or_create(
        id=1, defaults={"since": Now(), "looked_at": Now()}
    )
    gap = Q(looked_at__lt=Now() - GAP, since__lt=F("looked_at"))
    watch.update(since=Case(When(gap, then=Now()), default=F("since")), looked_at=Now())
    return watch.filter(since__lte=Now() - grace).exists()
