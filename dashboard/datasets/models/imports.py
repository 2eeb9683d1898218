"""Uploads, and the jobs that create versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models

from dashboard.accounts.models import Team
from dashboard.datasets.models.versions import Dataset, DatasetVersion, describe_source
from dashboard.jobs.models import JobState, JobTarget


class Upload(models.Model):
    """A file that is uploaded or downloaded; deleted after its import."""

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
    remark = models.CharField(max_length=300, blank=True)  # e.g. on a wrong extension
    num_bytes = models.BigIntegerField()
    # False while its parts arrive; the size on disk is the number of bytes received.
    is_whole = models.BooleanField(default=True)
    # From the browser: hash of the first bytes and time of the last change.
    fingerprint = models.CharField(max_length=64, blank=True)
    # Empty for a file from a browser. Else the link, as in fetching.links, with its
    # choices; once complete, the source of its version.
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
    def percent_received(self) -> int:
        return 100 * self.num_received // max(self.num_bytes, 1)

    @property
    def files(self) -> list[Path]:
        """The files on disk; a download may have several parts."""
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
        """The source of a complete download as text."""
        return describe_source(self.source) if self.is_linked and self.is_whole else ""

    @property
    def path(self) -> Path:
        return Path(settings.COHORT_DATA) / "uploads" / self.stored_name

    @property
    def has_types(self) -> bool:
        """False if every value of the file is text."""
        return self.format not in (self.Format.CSV, self.Format.TSV)

    @property
    def place(self) -> str:
        return place_of(self.format)

    @property
    def kind(self) -> str:
        packed = f", {self.packing}-compressed" if self.packing else ""
        return f"{self.get_format_display()}{packed}"


class ImportJob(JobTarget):
    """A job that creates a version from a file, selected rows or a task.

    Or a job that downloads the file.
    """

    class Kind(models.TextChoices):
        FETCH = "fetch"
        IMPORT = "import"
        GENERATE = "generate"

    team = models.ForeignKey(Team, models.CASCADE, related_name="import_jobs")
    # The upload is deleted after the import; its key stays for a repeated request.
    upload = models.ForeignKey(
        Upload,
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="jobs",
        db_constraint=False,
    )
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.IMPORT)
    # The version whose rows are selected.
    parent = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # Of the selected rows, four bytes each; empty: the rows of the view in `source`.
    positions = models.BinaryField(default=b"")
    source = models.JSONField[dict[str, Any]](default=dict, blank=True)
    # Of the form: a second click finds the job of the first one.
    key = models.UUIDField(null=True, blank=True, unique=True)
    # Shown to users: the file name, or the version of the selected rows.
    filename = models.CharField(max_length=200)
    # Bytes of a file or rows of a version; 0 for a download of unknown size.
    num_to_read = models.BigIntegerField()
    # The dataset that gets the selected rows as a new version.
    dataset = models.ForeignKey(
        Dataset, models.CASCADE, null=True, blank=True, related_name="+"
    )
    # From the mapping page.
    name = models.CharField(max_length=80, blank=True)  # of a new dataset
    mapping = models.JSONField[dict[str, Any]](default=dict, blank=True)
    leave_out = models.PositiveIntegerField(default=0)

    version = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    made_version = models.BooleanField(
        default=False
    )  # False: the newest version has these rows
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
        """True if rows have errors, so that nothing was stored."""
        return self.state == JobState.FAILED and bool(self.refusals)


def place_of(file_format: str | None) -> str:
    """Return what the line number of an error counts in this format."""
    return "Row" if file_format == Upload.Format.PARQUET else "Line"
