"""Old probes are forgotten: their rows, their completions and their files."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Count, QuerySet
from django.utils import timezone

from dashboard.jobs.models import OPEN
from dashboard.probes.models import Probe
from dashboard.runs.checkpoints.files import Shelf
from dashboard.runs.checkpoints.retention import keep_best

KEPT = timedelta(days=30)  # after its end
MOST_KEPT = 200  # of a team


def forget_old_probes() -> int:
    """How many were forgotten. What waits or runs is not old."""
    ended = Probe.objects.exclude(job__state__in=OPEN)
    num_old = _delete(ended.filter(job__finished_at__lt=timezone.now() - KEPT))
    counted = ended.order_by().values("team").annotate(count=Count("pk"))
    crowded = counted.filter(count__gt=MOST_KEPT).values_list("team", flat=True)
    for team_id in crowded:
        of_team = ended.filter(team=team_id).order_by("-pk")
        too_many = list(of_team.values_list("pk", flat=True)[MOST_KEPT:])
        num_old += _delete(Probe.objects.filter(pk__in=too_many))
    sweep_folders()
    return num_old


def let_go_of_tried() -> None:
    """Leave checkpoints to their trainers again that were kept for a try."""
    ended = Probe.objects.filter(
        job__finished_at__gte=timezone.now() - timedelta(days=1)
    )
    runs = ended.exclude(checkpoint=None).values_list("checkpoint__run", flat=True)
    for run_id in runs.distinct():
        if Shelf(run_id).is_seen:
            keep_best(run_id)


def _delete(probes: QuerySet[Probe]) -> int:
    return probes.delete()[1].get("probes.Probe", 0)


def sweep_folders() -> None:
    """Remove from this machine the files of probes that are forgotten.

    Each worker does so for itself: they need not share a disk.
    """
    folder = probes_folder()
    if not folder.is_dir():
        return
    found = {int(path.name): path for path in folder.iterdir() if path.name.isdecimal()}
    known = set(Probe.objects.filter(pk__in=found).values_list("pk", flat=True))
    for pk in found.keys() - known:
        shutil.rmtree(found[pk], ignore_errors=True)


def probes_folder() -> Path:
    return Path(settings.COHORT_DATA) / "probes"
