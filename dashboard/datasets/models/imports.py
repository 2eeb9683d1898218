"""Files that wait, and the jobs that make versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models

from dashboard.accounts.models import Team
from dashboard.datasets.models.versions import Dataset, DatasetVersion, describe_source
from dashboard.jobs.models import JobState, JobTarget


class Upload(models.Model):
    """A file that arrives or is fetched, or waits for its mapping; then it is gone."""

    class Format(models.TextChoices):
        JSONL = "jsonl", "JSONL"
        JSON = "json", "JSON"
        CSV = "csv", "CSV"
        TSV = "tsv", "TSV"
        PARQUET = "parquet", "Parquet"

    class Packing(models.TextChoices):
        NONE = "", "not packed"
        GZIP = "gzip", "gzip"
        ZSTD = "zstd", "zstd"

    team = models.ForeignKey(Team, models.CASCADE, related_name="uploads")
    # The dataset that gets a new version; null: a new dataset.
    dataset = models.ForeignKey(
        Dataset, models.CASCADE, null=True, blank=True, related_name="uploads"
    )
    filename = models.CharField(max_length=200)  # as the browser named it
    stored_name = models.CharField(max_length=80, unique=True)
    format = models.CharField(max_length=10, choices=Format, blank=True)  # once whole
    packing = models.CharField(max_length=10, choices=Packing, blank=True, default="")
    remark = models.CharField(max_length=300, blank=True)  # its name says otherwise
    num_bytes = models.BigIntegerField()
    # False while its parts arrive; the file itself tells how many bytes are here.
    is_whole = models.BooleanField(default=True)
    # By what the browser knows it again: of the file's beginning and its last change.
    fingerprint = models.CharField(max_length=64, blank=True)
    # Empty for a file from a browser. Else what was asked for, as fetching.links
    # writes it, with what is known since; once whole, what its version is to say.
    source = models.JSONField[dict[str, Any]](
        default=dict, blank=True, db_column="origin"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.filename

    @property
    def num_received(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def files(self) -> list[Path]:
        """What of it is on disk; of a fetched one that may be several parts."""
        parts = self.path.parent.glob(f"{self.stored_name}.*") if self.source else ()
        return sorted(file for file in (self.path, *parts) if file.exists())

    @property
    def is_linked(self) -> bool:
        return bool(self.source)

    @property
    def lineage(self) -> dict[str, Any]:
        return self.source or {"kind": "upload"}

    @property
    def fetched_from(self) -> str:
        """Of a whole file that was fetched, in words."""
        return describe_source(self.source) if self.is_linked and self.is_whole else ""

    @property
    def path(self) -> Path:
        return Path(settings.COHORT_DATA) / "uploads" / self.stored_name

    @property
    def has_types(self) -> bool:
        """False where every value of the file is a text."""
        return self.format not in (self.Format.CSV, self.Format.TSV)

    @property
    def place(self) -> str:
        return place_of(self.format)

    @property
    def kind(self) -> str:
        packed = f", {self.packing}-compressed" if self.packing else ""
        return f"{self.get_format_display()}{packed}"


class ImportJob(JobTarget):
    """Rows of a file, or some of a version's, that become a version: all or none.

    Or, before that, the file itself on its way here; or rows that a task writes.
    """

    class Kind(models.TextChoices):
        FETCH = "fetch"
        IMPORT = "import"
        GENERATE = "generate"

    team = models.ForeignKey(Team, models.CASCADE, related_name="import_jobs")
    # An upload goes once it is imported; its number stays for whoever asks again.
    upload = models.ForeignKey(
        Upload,
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="jobs",
        db_constraint=False,
    )
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.IMPORT)
    # Where the rows come from if from no file.
    parent = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # Of those rows, four bytes each; empty: those that the view in `source` shows.
    positions = models.BinaryField(default=b"")
    source = models.JSONField[dict[str, Any]](default=dict, blank=True)
    # Of the form that asked for those: a second click finds the first one's job.
    key = models.UUIDField(null=True, blank=True, unique=True)
    # What is read, for people: a file's name, or of which version rows are taken.
    filename = models.CharField(max_length=200)
    # Bytes of a file, rows of a version; 0: of a fetch, which has not been told.
    num_to_read = models.BigIntegerField()
    # The dataset that gets a new version of a version's rows; an upload knows its own.
    dataset = models.ForeignKey(
        Dataset, models.CASCADE, null=True, blank=True, related_name="+"
    )
    # What was chosen on the page of its columns.
    name = models.CharField(max_length=80, blank=True)  # of a new dataset
    mapping = models.JSONField[dict[str, Any]](default=dict, blank=True)
    leave_out = models.PositiveIntegerField(default=0)

    version = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    made_version = models.BooleanField(default=False)  # else these rows were there
    # As Refusals.as_json writes them.
    refusals = models.JSONField[dict[str, Any]](default=dict, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        if self.is_fetch:
            return f"Download of {self.filename}"
        if self.is_generated:
            return f"Generation of {self.num_to_read:,} rows of {self.filename}"
        return (
            f"Import of {self.filename}"
            if self.upload_id
            else f"Saving {self.filename}"
        )

    @property
    def is_fetch(self) -> bool:
        return self.kind == self.Kind.FETCH

    @property
    def is_generated(self) -> bool:
        return self.kind == self.Kind.GENERATE

    @property
    def job_kind(self) -> str:
        if self.is_fetch:
            return "dataset.fetch"
        if self.is_generated:
            return "dataset.generate"
        return "dataset.import" if self.upload_id else "dataset.select"

    @property
    def is_refused(self) -> bool:
        """Whether rows were refused, so that nothing was stored."""
        return self.state == JobState.FAILED and bool(self.refusals)


def place_of(file_format: str | None) -> str:
    """What a refusal's number counts in a file of this format."""
    return "Row" if file_format == Upload.Format.PARQUET else "Line"
