"""Everything that reads datasets. Another team's are not found."""

from __future__ import annotations

from django.db.models import Count, Prefetch, QuerySet
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.datasets.models import Dataset, DatasetVersion, Upload


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


def versions_with_use(dataset: Dataset) -> list[DatasetVersion]:
    return list(
        dataset.versions.select_related("created_by")
        .annotate(num_runs=Count("runs"))
        .order_by("-number")
    )
