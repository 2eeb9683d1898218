"""Datasets, their versions and rows; the uploads, imports and analyses of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.text import Truncator

from dashboard.accounts.models import Named, Team, WithCreator
from dashboard.datasets.row import Prompt, Row, WithAnswer, question_of
from dashboard.jobs.models import JobState, JobTarget

MAX_OPTION_CHARS = 200  # of a taskset, in its source


def describe_source(source: dict[str, Any], *, num_rows: int = 0) -> str:
    """Return the source of a version as text."""
    if source.get("kind") == "generator":
        return f"task {source.get('task')}, seed {source.get('seed')}"
    if source.get("kind") == "taskset":
        return _describe_taskset(source["task"], source.get("options"))
    if source.get("kind") == "split":
        return f"{source['part']} split of {source['parent']} ({source['how']})"
    if source.get("kind") in ("view", "run"):
        return (
            f"{num_rows:,} of {source['num_parent_rows']:,} rows of "
            f"{source['parent']} ({source['how']})"
        )
    if source.get("kind") == "link":
        return f"{source['url']}, fetched {source['fetched_at'][:10]}"
    if source.get("kind") == "hub":
        return (
            f"{source['dataset']} {source['part']} @ {source['commit']}, fetched "
            f"{source['fetched_at'][:10]}"
        )
    return str(source.get("filename") or source.get("kind") or "unknown")


def _describe_taskset(name: str, options: dict[str, Any] | None) -> str:
    changed = ", ".join(
        f"{option}={json.dumps(value, ensure_ascii=False)}"
        for option, value in (options or {}).items()
    )
    shown = f" ({Truncator(changed).chars(MAX_OPTION_CHARS)})" if changed else ""
    return f"taskset {name}{shown}"


class Dataset(Named, WithCreator):
    team = models.ForeignKey(Team, models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    # In the trash since; the name is free again.
    trashed_at = models.DateTimeField(null=True, blank=True)
    trashed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
    )

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "name"],
                condition=Q(trashed_at__isnull=True),
                name="dataset_name_free",
            ),
        ]


class DatasetVersion(WithCreator):
    """Immutable rows, identified by the SHA-256 of their content."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    content_sha256 = models.CharField(max_length=64)
    num_rows = models.PositiveIntegerField()
    # Rows with errors that were skipped, and the first hundred of them.
    num_left_out = models.PositiveIntegerField(default=0)
    left_out = models.JSONField[list[dict[str, Any]]](default=list, blank=True)
    # Of the first rows, for lists.
    first_prompt = models.CharField(max_length=200, default="", db_default="")
    answer_type = models.CharField(max_length=10, default="", db_default="")
    # {"prompt": "question", "answer": "solution" | null, "columns": ["level", …]}
    mapping = models.JSONField[dict[str, Any]]()
    # {"kind": "upload", "filename": …, "num_bytes": …}, {"kind": "generator", …},
    # {"kind": "taskset", "task": …, "options": …},
    # {"kind": "split", "part": "train" | "eval", "parent_id": …, "how": …, …},
    # {"kind": "link", "url": …, "fetched_at": …, "sha256": …, "filename": …, …},
    # {"kind": "hub", "dataset": …, "part": …, "commit": …, "fetched_at": …, …}, or as
    # selections.py writes it: {"kind": "view" | "run", "parent_id": …, "how": …, …}
    source = models.JSONField[dict[str, Any]](default=dict)
    # Settings of EnvironmentConfig that differ from its defaults; null: none.
    environment = models.JSONField[dict[str, Any] | None](null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["dataset", "number"], name="dataset_version_number_free"
            ),
            models.CheckConstraint(
                condition=Q(num_rows__gt=0), name="dataset_version_has_rows"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset} v{self.number}"

    def path_of(self, column: str) -> list[str]:
        """Keys to the values of an extra column, or inside one by a dotted path; empty
        without such a column."""
        names = self.mapping.get("columns", [])
        if column in names:
            return [column]
        path = column.split(".")
        return path if path[0] in names else []

    def has_column(self, column: str) -> bool:
        return bool(self.path_of(column))

    @property
    def source_text(self) -> str:
        return describe_source(self.source, num_rows=self.num_rows)

    @property
    def environment_text(self) -> str:
        """The kind of the environment, or its taskset; empty if there is none."""
        environment = self.environment or {}
        if environment.get("kind") != "verifiers":
            return str(environment.get("kind", ""))
        return _describe_taskset(environment["taskset"], environment.get("options"))


class DatasetRow(WithAnswer, models.Model):
    version = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="rows")
    position = models.PositiveIntegerField()  # 0, 1, 2 …; a run's prompt_index
    prompt = models.TextField()  # the text, or chat messages as JSON
    is_chat = models.BooleanField(default=False)
    # Null is no answer; an empty text is an answer.
    answer = models.TextField(null=True)  # noqa: DJ001
    # Several answers, as JSON; any is right.
    answer_is_list = models.BooleanField(default=False, db_default=False)
    columns = models.JSONField[dict[str, Any]](default=dict)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["version", "position"], name="dataset_row_position_free"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version} row {self.position}"

    @property
    def ordered_columns(self) -> dict[str, Any]:
        """In the order of the file; PostgreSQL sorts the keys by length."""
        order = self.version.mapping.get("columns", [])
        mapped = [name for name in order if name in self.columns]
        names = dict.fromkeys([*mapped, *sorted(self.columns)])
        return {name: self.columns[name] for name in names}

    @property
    def prompt_value(self) -> Prompt:
        return json.loads(self.prompt) if self.is_chat else self.prompt

    @property
    def question(self) -> str:
        """The prompt's text; of a chat, its last user message."""
        return question_of(self.prompt_value)

    def as_row(self) -> Row:
        return Row(
            prompt=self.prompt_value, answer=self.answer_value, columns=self.columns
        )


class RowOrder(models.Model):
    """The rows of a version, sorted once: they never change."""

    version = models.ForeignKey(
        DatasetVersion, models.CASCADE, related_name="row_orders"
    )
    key = models.CharField(max_length=220)  # of row_filters.SORTS, or of a column
    positions = models.BinaryField(default=b"")  # four bytes each, the lowest first
    is_made = models.BooleanField(default=False)
    JOB = "dataset.order"

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["version", "key"], name="row_order_made_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.version} by {self.key}"


class Upload(WithCreator):
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


class Analysis(models.Model):
    """A result that a job computes from the rows of versions."""

    JOB: ClassVar[str]  # the kind of its jobs

    num_wanted = models.PositiveIntegerField()
    num_looked = models.PositiveIntegerField(default=0)
    # None until it is computed.
    result = models.JSONField[dict[str, Any]](null=True)
    problem = models.TextField(blank=True)  # why it failed
    waiting_text = ""  # why its job waits

    class Meta:
        abstract = True

    @property
    def is_done(self) -> bool:
        return self.result is not None


class VersionStatistics(Analysis):
    JOB = "dataset.statistics"

    version = models.OneToOneField(
        DatasetVersion, models.CASCADE, related_name="statistics"
    )

    def __str__(self) -> str:
        return f"statistics of {self.version}"


class TokenLengths(Analysis):
    """Prompt lengths in tokens of a model."""

    JOB = "dataset.token_lengths"

    version = models.ForeignKey(
        DatasetVersion, models.CASCADE, related_name="token_lengths"
    )
    model = models.CharField(max_length=500)  # a folder or a hub id

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["version", "model"], name="token_lengths_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"tokens of {self.version} by {self.model}"


class VersionDifference(Analysis):
    """The rows that differ between two versions."""

    JOB = "dataset.difference"

    old = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    new = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    # Positions, four bytes each; of changed rows first the old one, then the new.
    removed = models.BinaryField(default=b"")
    added = models.BinaryField(default=b"")
    changed = models.BinaryField(default=b"")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["old", "new"], name="version_difference_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.old} and {self.new}"


class VersionLeak(Analysis):
    """The rows of a held-out version that are also in a training version."""

    JOB = "dataset.leak"

    held_out = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    trained_on = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    # Pairs of positions, four bytes each: of the held-out row, of the other.
    exact = models.BinaryField(default=b"")
    words = models.BinaryField(default=b"")
    near = models.BinaryField(default=b"")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["held_out", "trained_on"], name="version_leak_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"leaks of {self.held_out} into {self.trained_on}"


class VersionSplit(WithCreator, Analysis):
    """A version's rows, split into two new datasets: all of them, or none yet."""

    JOB = "dataset.split"

    version = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="splits")
    # {"by": "share", "share": 10.0, "seed": 0} or {"by": "column", "column": …,
    # "value": …}: what goes to the eval split.
    rule = models.JSONField[dict[str, Any]]()
    train_name = models.CharField(max_length=80)
    eval_name = models.CharField(max_length=80)
    train = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    eval = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"{self.version} by {self.how}"

    @property
    def how(self) -> str:
        """The rule in words."""
        rule = self.rule
        if rule["by"] == "share":
            return f"{rule['share']:g}%, seed {rule['seed']}"
        return f"{rule['column']} = {rule['value']}"
