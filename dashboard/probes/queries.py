"""Everything that reads probes. Another team's are not found."""

from __future__ import annotations

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.jobs.models import OPEN, Job, JobState
from dashboard.probes.models import Probe
from dashboard.runs.models import HELD as HELD_RUNS
from dashboard.runs.models import Run

RELATED = (
    *("dataset_version__dataset", "recipe_version__recipe", "created_by"),
    "checkpoint__run",
    "job",
)
NUM_LISTED = 20


def get_probe(team: Team, probe_id: int) -> Probe:
    return get_object_or_404(team.probes.select_related(*RELATED), pk=probe_id)


def list_probes(team: Team) -> QuerySet[Probe]:
    return team.probes.select_related(*RELATED).order_by("-id")[:NUM_LISTED]


def what_it_waits_for(probe: Probe) -> str:
    """Why a queued probe does not run yet, as far as is known; two queries."""
    if probe.job is None or probe.state != JobState.QUEUED:
        return ""
    open_ = Job.objects.filter(kind=probe.job.kind, state__in=OPEN)
    before = open_.filter(pk__lt=probe.job.pk).count()
    num_runs = Run.objects.filter(state__in=[state.value for state in HELD_RUNS])
    busy = num_runs.count() + open_.filter(state=JobState.RUNNING).count()
    if not busy and not before:
        return "Waiting for a training worker to take it."
    runs = f"{num_runs.count()} run{'s' if num_runs.count() != 1 else ''}"
    return (
        f"Waiting: the training workers hold {runs}, and {before} "
        f"probe{'s' if before != 1 else ''} came before this one."
    )
