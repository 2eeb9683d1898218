"""A report: a page of text with blocks, the versions it had, and what it pinned."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team

MAX_TITLE = 160


class Report(models.Model):
    """A report as it was last saved; `number` rises with each save."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="reports")
    title = models.CharField(max_length=MAX_TITLE)
    text = models.TextField(blank=True)
    number = models.PositiveIntegerField(default=0)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="reports",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    saved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
    )
    saved_at = models.DateTimeField(auto_now_add=True)

    # Of its public link only the SHA-256 is kept; empty: there is none.
    public_sha256 = models.CharField(max_length=64, blank=True)
    published_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
    )
    published_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["public_sha256"],
                condition=~Q(public_sha256=""),
                name="report_public_link_once",
            ),
            models.CheckConstraint(
                condition=Q(public_sha256="") | Q(published_at__isnull=False),
                name="report_public_since",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-saved_at"]),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def is_public(self) -> bool:
        return bool(self.public_sha256)


class ReportVersion(models.Model):
    """A report as one person saved it. Never changed."""

    report = models.ForeignKey(Report, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=MAX_TITLE)
    text = models.TextField(blank=True)
    saved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    saved_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["report", "number"], name="report_version_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.report_id} version {self.number}"


class Pin(models.Model):
    """The data of a block at a moment: they stay when its runs go."""

    report = models.ForeignKey(Report, models.CASCADE, related_name="pins")
    number = models.PositiveIntegerField()  # pin=3 in the report's text
    line = models.TextField()  # the block, without its pin
    data = models.JSONField[dict[str, Any]]()
    pinned_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    pinned_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["report", "number"], name="report_pin_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.report_id} pin {self.number}"
