"""Who may work on an import: one at a time, and an older claim can be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Now

from dashboard.exchange.models import RunImport

State = RunImport.State
LOCK = 0x52756E73  # any number of our own, the same in every process


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on an import, until somebody else claims it."""

    pk: int
    attempt: int

    def held(self) -> QuerySet[RunImport]:
        return RunImport.objects.filter(
            pk=self.pk, attempt=self.attempt, state=State.RUNNING
        )

    def end(self, state: RunImport.State, **result: Any) -> bool:
        return bool(self.held().update(state=state, ended_at=Now(), **result))


def claim_import(pk: int) -> Claim | None:
    queued = RunImport.objects.filter(pk=pk, state=State.QUEUED)
    if not queued.update(
        state=State.RUNNING, attempt=F("attempt") + 1, heartbeat=Now()
    ):
        return None
    attempt = RunImport.objects.values_list("attempt", flat=True).get(pk=pk)
    return Claim(pk=pk, attempt=attempt)


def claim_next() -> Claim | None:
    """Teams take turns: the oldest of the team that waits longest for one."""
    of_team = RunImport.objects.filter(team=OuterRef("team"), heartbeat__isnull=False)
    served = of_team.order_by("-heartbeat").values("heartbeat")[:1]
    waiting = RunImport.objects.filter(state=State.QUEUED).annotate(
        served_at=Subquery(served)
    )
    waiting = waiting.order_by(F("served_at").asc(nulls_first=True), "queued_at", "pk")
    for pk in waiting.values_list("pk", flat=True)[:100]:
        if claim := claim_import(pk):
            return claim
    return None


@contextmanager
def alone(worker: str) -> Iterator[bool]:
    """Whether no other slot of this worker is at imports; they stay free for the rest.

    A lost connection unlocks it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [LOCK, worker])
        (is_alone,) = cursor.fetchone()
        try:
            yield is_alone
        finally:
            if is_alone:
                cursor.execute(
                    "SELECT pg_advisory_unlock(%s, hashtext(%s))", [LOCK, worker]
                )
