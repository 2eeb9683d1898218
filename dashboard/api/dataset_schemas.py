"""Schemas of datasets, versions, rows and imports."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from ninja import Query, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.problems import or_404, refuse_field
from dashboard.api.schemas import (
    LARGEST_STEP,
    Input,
    JobOut,
    Person,
    fill,
    job_fields,
    query_of,
    refuse_errors,
)
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion, ImportJob
from dashboard.datasets.queries import get_dataset, list_versions
from dashboard.datasets.row_filters import RowFilterForm

Name = Annotated[str, Field(max_length=400)]
Text = Annotated[str, Query("", max_length=500)]
Length = Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)]


class DatasetOut(Schema):
    id: int = Field(examples=[4])
    name: str = Field(examples=["sums"])
    description: str
    created_by: Person | None
    created_at: datetime
    trashed_at: datetime | None

    @classmethod
    def of(cls, row: Dataset) -> DatasetOut:
        return fill(cls, row, created_by=Person.of(row.created_by))


class DatasetVersionOut(Schema):
    id: int = Field(examples=[12])
    dataset_id: int = Field(examples=[4])
    dataset: str = Field(examples=["sums"])
    number: int = Field(examples=[2])
    num_rows: int = Field(examples=[7_473])
    num_left_out: int = Field(description="Rows with errors that the import skipped.")
    content_sha256: str
    mapping: dict[str, Any] = Field(
        examples=[{"prompt": "question", "answer": "answer", "columns": []}]
    )
    source_text: str = Field(examples=["uploaded: sums.jsonl"])
    source: dict[str, Any] = Field(
        description="The source as fields: a file, a link, a version or a run.",
        examples=[{"kind": "upload", "filename": "sums.jsonl", "num_bytes": 512_000}],
    )
    created_at: datetime

    @classmethod
    def of(cls, version: DatasetVersion) -> DatasetVersionOut:
        return fill(cls, version, dataset=version.dataset.name)


class RowOut(Schema):
    position: int = Field(
        description="Index from 0: a run's `prompt_index`.", examples=[0]
    )
    prompt: str | list[dict[str, Any]] = Field(examples=["What is 1 + 1?"])
    answer: str | list[str] | None = Field(
        description="Of a list, any answer is right.", examples=["2"]
    )
    columns: dict[str, Any] = Field(examples=[{"level": 1}])

    @classmethod
    def of(cls, row: DatasetRow) -> RowOut:
        return fill(cls, row, prompt=row.prompt_value, answer=row.answer_value)


class ImportOut(JobOut):
    id: int
    kind: str = Field(
        description="fetch: downloads a file. import: creates a version. "
        "generate: generates rows of a task.",
        examples=["import"],
    )
    filename: str = Field(
        description="File or rows that the import reads.", examples=["sums.jsonl"]
    )
    upload_id: int | None = Field(
        description="Upload that a fetch fills or an import reads.", examples=[6]
    )
    version: DatasetVersionOut | None
    made_version: bool = Field(
        description="False if the newest version already has these rows."
    )
    refusals: dict[str, Any] = Field(
        description="Rows with errors: their count, and the first ones by line."
    )

    @classmethod
    def of(cls, job: ImportJob, *, tells_why: bool = False) -> ImportOut:
        return cls(
            id=job.pk,
            kind=job.kind,
            **job_fields(job, tells_why=tells_why),
            filename=job.filename,
            upload_id=job.upload_id,
            version=DatasetVersionOut.of(job.version) if job.version else None,
            made_version=job.made_version,
            refusals=job.refusals,
        )


def find_version(team: Team, version_id: int) -> DatasetVersion:
    """Find a version of the team that is not in the trash."""
    found = list_versions(team).filter(pk=version_id).first()
    version = or_404(found, f"{team} has no dataset version {version_id}.")
    version.dataset.team = team  # avoids a query
    return version


def find_dataset(team: Team, dataset_id: int | None) -> Dataset | None:
    """Find the dataset that gets a new version; None: a new dataset."""
    return get_dataset(team, dataset_id) if dataset_id else None


# Filters and order of a version's rows.


class RowFilters(Input):
    q: Text = Field("", description="Text in the prompt or answer, ignoring case.")
    answer: Text = Field("", description="yes: with an answer. no: without.")
    kind: Text = Field("", description="Kind of prompt: text or chat.")
    min_chars: Length = Field(None, description="Minimum length of the prompt.")
    max_chars: Length = Field(None, description="Maximum length of the prompt.")
    column: Text = Field(
        "",
        description="Extra column that equals `value`, or a path inside one: "
        "`extra_info.level`.",
    )
    value: Text
    sort: Annotated[str, Query("", max_length=1_010)] = Field(
        "",
        description="position, prompt_length, answer, answer_length or column:NAME, "
        "where NAME may be a path too; a leading `-` reverses the order.",
    )


def read_view(version: DatasetVersion, filters: RowFilters) -> RowFilterForm:
    """Read the form of the page; errors name their field."""
    if filters.column and not version.has_column(filters.column):
        columns = ", ".join(version.mapping.get("columns", [])) or "none"
        raise refuse_field(
            "query.column",
            f"{version} has no extra column {filters.column[:60]!r}. It has: "
            f"{columns[:300]}.",
            "datasets.unknown_column",
        )
    view = RowFilterForm.read(version, query_of(filters.model_dump()))
    refuse_errors(view)
    return view
