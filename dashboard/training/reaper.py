"""Finding runs whose worker is gone."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection, transaction
from django.db.models import Case, F, Q, When
from django.db.models.functions import Now

from dashboard.runs.models import Run
from dashboard.training.lease import HOLDING, LEASE, RENEW_SECONDS
from dashboard.training.lives import lose_life
from dashboard.training.models import ReaperWatch, Worker

ADVISORY_LOCK = 0x436F686F  # any number of our own, the same in every process
FORGET_AFTER = timedelta(days=7)
# Behind so long a gap a lease may be over that was fresh at the look before it.
GAP = LEASE - timedelta(seconds=2 * RENEW_SECONDS)
# Within it each living supervisor renews.
TURN = timedelta(seconds=RENEW_SECONDS + 2)


@transaction.atomic
def reap(*, grace: timedelta = LEASE) -> list[int]:
    """Requeue or end every run whose lease ran out; their ids.

    Idempotent: whoever comes second finds the lock taken or the run moved on. After
    the database's start supervisors have `grace` to report again; after a time in
    which nobody looked, as the machine slept, they have a turn of it.
    """
    if not _is_alone():
        return []
    if not _watches_for(min(grace, TURN)) or not _is_up_for(grace):
        return []
    expired = Run.objects.select_for_update(skip_locked=True).filter(
        state__in=HOLDING, lease_until__lt=Now()
    )
    lost = [run.id for run in expired if lose_life(run, outcome=_outcome(run))]
    Worker.objects.filter(last_seen__lt=Now() - FORGET_AFTER).delete()
    return lost


def _outcome(run: Run) -> str:
    who = "trainer" if run.is_outside else f"worker {run.worker}"
    return f"its {who} was not heard of"


def _is_alone() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        return bool(cursor.fetchone()[0])


def _watches_for(grace: timedelta) -> bool:
    """Note this look; called alone.

    A suspended machine stops supervisors' clocks, not the database's: they get time
    to renew. Two gaps in a row do not: looks that always come late must find the dead.
    """
    watch = ReaperWatch.objects.filter(id=1)
    ReaperWatch.objects.get_or_create(
        id=1, defaults={"since": Now(), "looked_at": Now()}
    )
    gap = Q(looked_at__lt=Now() - GAP, since__lt=F("looked_at"))
    watch.update(since=Case(When(gap, then=Now()), default=F("since")), looked_at=Now())
    return watch.filter(since__lte=Now() - grace).exists()


def _is_up_for(grace: timedelta) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM now() - pg_postmaster_start_time()) >= %s",
            [grace.total_seconds()],
        )
        return bool(cursor.fetchone()[0])
