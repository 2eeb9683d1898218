"""Old rescorings are forgotten: their rows, their results and their judges' replies."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Count, QuerySet
from django.utils import timezone

from dashboard.jobs.models import OPEN
from dashboard.rescoring.models import Rescoring

KEPT = timedelta(days=30)  # after its end
MOST_KEPT = 100  # of a team


def forget_old_rescorings() -> int:
    """How many were forgotten. What waits or runs is not old."""
    ended = Rescoring.objects.exclude(job__state__in=OPEN)
    num_old = _delete(ended.filter(job__finished_at__lt=timezone.now() - KEPT))
    counted = ended.order_by().values("team").annotate(count=Count("pk"))
    crowded = counted.filter(count__gt=MOST_KEPT).values_list("team", flat=True)
    for team_id in crowded:
        of_team = ended.filter(team=team_id).order_by("-pk")
        too_many = list(of_team.values_list("pk", flat=True)[MOST_KEPT:])
        num_old += _delete(Rescoring.objects.filter(pk__in=too_many))
    sweep_folders()
    return num_old


def _delete(rescorings: QuerySet[Rescoring]) -> int:
    return rescorings.delete()[1].get("rescoring.Rescoring", 0)


def folder_of(rescoring_id: int) -> Path:
    return _folder() / str(rescoring_id)


def sweep_folders() -> None:
    """Remove from this machine what judges replied in rescorings that have ended."""
    if not _folder().is_dir():
        return
    found = {
        int(path.name): path for path in _folder().iterdir() if path.name.isdecimal()
    }
    is_open = Rescoring.objects.filter(pk__in=found, job__state__in=OPEN)
    for pk in found.keys() - set(is_open.values_list("pk", flat=True)):
        shutil.rmtree(found[pk], ignore_errors=True)


def _folder() -> Path:
    return Path(settings.COHORT_DATA) / "rescorings"
