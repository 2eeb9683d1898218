"""API tokens, and stored responses for repeated requests."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from dashboard.accounts.models import Team


class Scope(models.TextChoices):
    READ = "read"
    WRITE = "write"
    INGEST = "ingest"
    ADMIN = "admin"


class ApiToken(models.Model):
    """Authenticates a program as one user in one team. Only the SHA-256 is stored.

    Its permissions are its scopes, limited by the user's role.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens"
    )
    team = models.ForeignKey(Team, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    token_sha256 = models.CharField(max_length=64, unique=True)
    hint = models.CharField(max_length=8)  # the last characters, for display
    scopes = ArrayField(models.CharField(max_length=10, choices=Scope))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)  # null: never
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=~models.Q(scopes=[]), name="api_token_may_do_something"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"], name="api_token_newest_first"),
        ]

    def __str__(self) -> str:
        return f"{self.name} (…{self.hint})"

    @property
    def state(self) -> str:
        """suspended: its user is deactivated."""
        if self.revoked_at:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= timezone.now():
            return "expired"
        return "active" if self.user.is_active else "suspended"


class Replay(models.Model):
    """The response to a request with an Idempotency-Key, stored for a day."""

    token = models.ForeignKey(ApiToken, models.CASCADE, related_name="replays")
    key = models.CharField(max_length=100)
    request_sha256 = models.CharField(max_length=64)  # of method, address and body
    status = models.PositiveSmallIntegerField(default=0)
    body = models.JSONField[Any](null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["token", "key"], name="replay_key_once"),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["created_at"], name="replay_oldest_first"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.token_id}"
