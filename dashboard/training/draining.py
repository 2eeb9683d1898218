"""Workers that finish what they run and take nothing new, as an admin asked."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.training.models import Worker


@transaction.atomic
def drain(worker: Worker, *, team: Team, user: User) -> bool:
    """False when it was drained already."""
    free = Worker.objects.filter(pk=worker.pk, drained_at__isnull=True)
    if not free.update(drained_at=Now(), drained_by=user):
        return False
    record(team, user, "worker.drained", worker, name=worker.name)
    return True


@transaction.atomic
def undrain(worker: Worker, *, team: Team, user: User) -> bool:
    """False when it was not drained."""
    drained = Worker.objects.filter(pk=worker.pk, drained_at__isnull=False)
    if not drained.update(drained_at=None, drained_by=None):
        return False
    record(team, user, "worker.undrained", worker, name=worker.name)
    return True


def is_drained(name: str) -> bool:
    return Worker.objects.filter(name=name, drained_at__isnull=False).exists()
