"""Queries of datasets. Those of other teams are not found."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from django.db.models import (
    Count,
    Exists,
    F,
    Max,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Coalesce
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob, Upload
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import read_rows_at
from dashboard.datasets.suggestions import DESCRIBED_ROWS, describe
from dashboard.jobs.models import OPEN, JobState

LONG_ROW_CHARS = 2**20
MAX_USES = 60  # named on a dataset's page; the run list has them all


def list_datasets(team: Team, text: str = "") -> QuerySet[Dataset]:
    """Last changed first; two queries. `newest` is a list of one version.

    `text` is in the name, or in the first prompt of a version.
    """
    newest = (
        DatasetVersion.objects.order_by("dataset_id", "-number")
        .distinct("dataset_id")
        .defer("left_out", "mapping", "source")
    )
    datasets = team.datasets.filter(trashed_at__isnull=True)
    if text:
        versions = DatasetVersion.objects.filter(
            dataset=OuterRef("pk"), first_prompt__icontains=text
        )
        datasets = datasets.filter(Q(name__icontains=text) | Exists(versions))
    return (
        datasets.annotate(
            newest_version=Max("versions"),
            num_runs=_num_using("dataset", "runs"),
            num_evaluated=_num_evaluated("dataset"),
        )
        .prefetch_related(Prefetch("versions", newest, to_attr="newest"))
        .order_by("-newest_version", "-pk")
    )


def describe_version(version: DatasetVersion) -> dict[str, str]:
    """`first_prompt` and `answer_type`, read from the first rows."""
    rows: list[Row] = []
    # A batch holds two megabytes at most, or one row; long rows are read alone.
    for stored in read_rows_at(
        version.rows.all(), range(min(DESCRIBED_ROWS, version.num_rows))
    ):
        rows.append(stored.as_row())
        if len(stored.prompt) > LONG_ROW_CHARS:
            break
    return describe(rows) if rows else {}


def list_versions(team: Team) -> QuerySet[DatasetVersion]:
    """Return every version of the team that is not in the trash, newest dataset
    first.
    """
    return (
        DatasetVersion.objects.filter(
            dataset__team=team, dataset__trashed_at__isnull=True
        )
        .select_related("dataset")
        .order_by("-dataset_id", "-number")
    )


def first_rows(version: DatasetVersion, num_rows: int = 10) -> list[Row]:
    return [row.as_row() for row in version.rows.order_by("position")[:num_rows]]


def get_dataset(team: Team, dataset_id: int) -> Dataset:
    """Return a dataset that is not in the trash."""
    datasets = team.datasets.filter(trashed_at__isnull=True)
    return get_object_or_404(datasets.select_related("created_by"), pk=dataset_id)


def get_any_dataset(team: Team, dataset_id: int) -> Dataset:
    """Return a dataset, in the trash or not."""
    return get_object_or_404(team.datasets.select_related("created_by"), pk=dataset_id)


def find_trashed(team: Team, dataset_id: int) -> Dataset | None:
    return list_trashed(team).filter(pk=dataset_id).first()


def list_trashed(team: Team) -> QuerySet[Dataset]:
    """Last trashed first, with the number of runs that used each."""
    return (
        team.datasets.filter(trashed_at__isnull=False)
        .select_related("trashed_by")
        .annotate(
            num_versions=Count("versions", distinct=True),
            num_runs=Count("versions__runs", distinct=True),
            num_evaluated=_num_evaluated("dataset"),
        )
        .order_by("-trashed_at")
    )


def _num_evaluated(of: Literal["dataset", "pk"]) -> Coalesce:
    """Runs that are evaluated on the version, or on one of the dataset's."""
    return _num_using(of, "evaluation_sets__run")


def _num_using(of: Literal["dataset", "pk"], path: str) -> Coalesce:
    """Build a subquery: a join would multiply the runs of two paths.

    Runs are of a higher floor, and named by string only.
    """
    versions = DatasetVersion.objects.filter(**{of: OuterRef("pk")}).order_by()
    counted = versions.values(of).annotate(count=Count(path, distinct=True))
    return Coalesce(Subquery(counted.values("count")), 0)


def get_upload(team: Team, upload_id: int) -> Upload:
    return get_object_or_404(team.uploads.select_related("dataset"), pk=upload_id)


def list_waiting(team: Team) -> list[Upload]:
    """Unfinished uploads; two queries. `running` is a list of one job."""
    live = ImportJob.objects.filter(job__state__in=OPEN)
    running = Prefetch("jobs", live, to_attr="running")
    return list(
        team.uploads.select_related("dataset", "created_by")
        .prefetch_related(running)
        .order_by("-pk")
    )


def find_upload(job: ImportJob) -> Upload | None:
    """Return the file of the job; None after the import, or for selected rows."""
    return Upload.objects.filter(jobs=job).first()


def last_job(upload: Upload) -> ImportJob | None:
    """Return the last job of either kind."""
    return ImportJob.objects.filter(upload=upload).order_by("-pk").first()


def live_or_done_job(team: Team, upload_id: int) -> ImportJob | None:
    """Return the open or finished import of an upload, which may be deleted."""
    done = Q(job__state=JobState.DONE, kind=ImportJob.Kind.IMPORT)
    jobs = team.import_jobs.filter(Q(job__state__in=OPEN) | done, upload_id=upload_id)
    return jobs.order_by("-pk").first()


def find_open_import(dataset: Dataset) -> ImportJob | None:
    """Return the job that is making a version of the dataset."""
    of = Q(dataset=dataset) | Q(upload__dataset=dataset)
    jobs = ImportJob.objects.filter(of, job__state__in=OPEN)
    made = jobs.exclude(kind=ImportJob.Kind.FETCH).select_related("created_by")
    return made.defer("positions").order_by("-pk").first()


def get_import_job(team: Team, job_id: int) -> ImportJob:
    jobs = team.import_jobs.select_related("team", "version__dataset", "parent", "job")
    jobs = jobs.defer("positions")  # a page polls the job twice a second
    return get_object_or_404(jobs, pk=job_id)


def versions_with_use(dataset: Dataset) -> list[DatasetVersion]:
    return list(
        dataset.versions.select_related("created_by")
        .annotate(
            num_runs=Count("runs"),
            num_uses=F("num_runs") + _num_evaluated("pk"),
        )
        .order_by("-number")
    )


def find_parents(
    team: Team, versions: list[DatasetVersion]
) -> dict[int, DatasetVersion]:
    """Return the versions that these were made from, by key, if they still exist."""
    keys = {
        version.source["parent_id"]
        for version in versions
        if "parent_id" in version.source
    }
    return list_versions(team).in_bulk(keys) if keys else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A run that was launched with a version."""

    run_id: int
    name: str
    state: str
    is_evaluation: bool  # evaluated on the version, not trained


def list_uses(dataset: Dataset) -> dict[int, list[Use]]:
    """List runs by the version's key, the newest of the dataset first; two queries."""
    # Runs are of a higher floor, and named by string only.
    pairs = [
        (version_id, Use(run_id=run_id, name=name, state=state, is_evaluation=held_out))
        for path, held_out in (("runs", False), ("evaluation_sets__run", True))
        for version_id, run_id, name, state in dataset.versions.filter(
            **{f"{path}__isnull": False}
        )
        .order_by(f"-{path}__pk")
        .values_list("pk", *(f"{path}__{field}" for field in ("pk", "name", "state")))
        .distinct()[:MAX_USES]
    ]
    uses: dict[int, list[Use]] = defaultdict(list)
    for version_id, use in sorted(pairs, key=lambda pair: -pair[1].run_id)[:MAX_USES]:
        uses[version_id].append(use)
    return uses
