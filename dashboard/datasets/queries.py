"""Everything that reads datasets. Another team's are not found."""

from __future__ import annotations

from django.db.models import Count, Prefetch, Q, QuerySet
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.datasets.models import (
    Dataset,
    DatasetRow,
    DatasetVersion,
    ImportJob,
    Upload,
)


def list_datasets(team: Team) -> list[Dataset]:
    """Two queries; `newest` is a list of one version."""
    newest = (
        DatasetVersion.objects.order_by("dataset_id", "-number")
        .distinct("dataset_id")
        .select_related("created_by")
    )
    return list(
        team.datasets.annotate(
            num_versions=Count("versions", distinct=True),
            # A relation of a higher rung, named by string only.
            num_runs=Count("versions__runs", distinct=True),
        )
        .prefetch_related(Prefetch("versions", newest, to_attr="newest"))
        .order_by("-pk")
    )


def list_versions(team: Team) -> QuerySet[DatasetVersion]:
    """Every version of the team, newest dataset first."""
    return (
        DatasetVersion.objects.filter(dataset__team=team)
        .select_related("dataset")
        .order_by("-dataset_id", "-number")
    )


def get_dataset(team: Team, dataset_id: int) -> Dataset:
    return get_object_or_404(team.datasets.select_related("created_by"), pk=dataset_id)


def get_upload(team: Team, upload_id: int) -> Upload:
    return get_object_or_404(team.uploads.select_related("dataset"), pk=upload_id)


def list_waiting(team: Team) -> list[Upload]:
    """Files that were not imported; two queries. `running` is a list of one job."""
    live = ImportJob.objects.filter(state__in=ImportJob.LIVE)
    running = Prefetch("jobs", live, to_attr="running")
    return list(
        team.uploads.select_related("dataset", "created_by")
        .prefetch_related(running)
        .order_by("-pk")
    )


def last_job(upload: Upload) -> ImportJob | None:
    return ImportJob.objects.filter(upload=upload).order_by("-pk").first()


def live_or_done_job(team: Team, upload_id: int) -> ImportJob | None:
    """The import of an upload that needs none more; the upload itself may be gone."""
    states = [*ImportJob.LIVE, ImportJob.State.DONE]
    jobs = team.import_jobs.filter(upload_id=upload_id, state__in=states)
    return jobs.order_by("-pk").first()


def get_import_job(team: Team, job_id: int) -> ImportJob:
    jobs = team.import_jobs.select_related("team", "version__dataset")
    return get_object_or_404(jobs, pk=job_id)


def versions_with_use(dataset: Dataset) -> list[DatasetVersion]:
    return list(
        dataset.versions.select_related("created_by")
        .annotate(num_runs=Count("runs"))
        .order_by("-number")
    )


def search_rows(version: DatasetVersion, text: str) -> QuerySet[DatasetRow]:
    rows = version.rows.order_by("position")
    # PostgreSQL refuses NUL in any text it is sent.
    if text := text.replace("\x00", ""):
        rows = rows.filter(Q(prompt__icontains=text) | Q(answer__icontains=text))
    return rows
