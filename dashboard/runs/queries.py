"""Lookups of runs. A run is found through its team only."""

from __future__ import annotations

from django.http import Http404

from dashboard.accounts.models import Team
from dashboard.runs.models import EvaluationSet, Run, SettingChange, TeamPreset

RELATED = (
    "team",
    "owner",
    "locked_by",
    "archived_by",
    "trashed_by",
    "cloned_from",
    "forked_from",
    "group",
    "dataset_version__dataset",
)
RELATED_RECIPE = "recipe_version__recipe"


def get_run(team: Team, run_id: int) -> Run:
    """The team's run with all that its pages name; one query, or 404."""
    run = get_any_run(team, run_id)
    if run.trashed_at is not None:
        raise Http404(
            f"{run.name} (#{run.pk}) is in the trash. Its own page, /{team.slug}/runs/"
            f"{run.pk}/, restores it."
        )
    return run


def get_any_run(team: Team, run_id: int) -> Run:
    """In the trash or not; one query, or 404."""
    runs = Run.objects.select_related(*RELATED, RELATED_RECIPE)
    try:
        return runs.get(team=team, id=run_id)
    except Run.DoesNotExist:
        raise Http404("No such run.") from None


def list_evaluation_sets(run: Run) -> list[EvaluationSet]:
    """In the order in which they were chosen; one query."""
    sets = run.evaluation_sets.select_related("dataset_version__dataset")
    return list(sets.order_by("pk"))


def list_changes(run: Run) -> list[SettingChange]:
    """Of the settings, the newest first; one query."""
    return list(run.changes.select_related("actor").order_by("-number"))


def where_it_runs(run: Run) -> tuple[str, str]:
    """The device and what samples, as the newest attempt told them; one query.

    Empty before the trainer has begun, and where a trainer does not tell.
    """
    told = run.events.filter(type__in=("run_started", "run_resumed")).order_by("-seq")
    found = told.values_list("body__device", "body__engine").first()
    device, engine = found or (None, None)
    return device or "", engine or ""


def get_team_preset(team: Team, pk: int) -> TeamPreset:
    """One query, or 404."""
    presets = TeamPreset.objects.select_related("recipe_version", "saved_by")
    try:
        return presets.get(team=team, pk=pk)
    except TeamPreset.DoesNotExist:
        raise Http404("No such preset.") from None
