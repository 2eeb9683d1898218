"""Datasets, their versions and rows."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.datasets.row import Prompt, Row, WithAnswer, question_of


def describe_source(source: dict[str, Any], *, num_rows: int = 0) -> str:
    """Return the source of a version as text."""
    if source.get("kind") == "generator":
        return f"task {source.get('task')}, seed {source.get('seed')}"
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


class Dataset(models.Model):
    team = models.ForeignKey(Team, models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
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

    def __str__(self) -> str:
        return self.name


class DatasetVersion(models.Model):
    """Immutable rows, identified by the SHA-256 of their content."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    content_sha256 = models.CharField(max_length=64)
    num_rows = models.PositiveIntegerField()
    # Rows with errors that were skipped, and the first hundred of them.
    num_left_out = models.PositiveIntegerField(default=0)
    left_out = models.JSONField[list[dict[str, Any]]](default=list, blank=True)
    # Of the first rows, for lists; empty where an older release stored the version.
    first_prompt = models.CharField(max_length=200, default="", db_default="")
    answer_type = models.CharField(max_length=10, default="", db_default="")
    # {"prompt": "question", "answer": "solution" | null, "columns": ["level", …]}
    mapping = models.JSONField[dict[str, Any]]()
    # {"kind": "upload", "filename": …, "num_bytes": …}, {"kind": "generator", …},
    # {"kind": "split", "part": "train" | "eval", "parent_id": …, "how": …, …},
    # {"kind": "link", "url": …, "fetched_at": …, "sha256": …, "filename": …, …},
    # {"kind": "hub", "dataset": …, "part": …, "commit": …, "fetched_at": …, …}, or as
    # selections.py writes it: {"kind": "view" | "run", "parent_id": …, "how": …, …}
    source = models.JSONField[dict[str, Any]](default=dict)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

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
