from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A person. Signs in with a link or a password."""

    email = models.EmailField(blank=True)
    display_name = models.CharField(max_length=80, blank=True)

    def __str__(self) -> str:
        return self.display_name or self.username


class Named(models.Model):
    """A row that is shown by its name, a field of the subclass."""

    name: models.CharField[Any, str]

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name


class WithCreator(models.Model):
    """A row with the person who created it, and when."""

    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class Team(Named):
    """Owns datasets, recipes and runs; `slug` is the first part of every address."""

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)
    members: models.ManyToManyField[User, Membership] = models.ManyToManyField(
        User, through="Membership", related_name="teams"
    )


class Role(models.TextChoices):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"


class Membership(models.Model):
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)
    # When the top bar's notifications were last opened; null: never.
    notifications_seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "team"], name="one_role_per_team"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.team}"

    @property
    def can_write(self) -> bool:
        return self.role != Role.VIEWER

    @property
    def can_manage(self) -> bool:
        """The team's people, and what is shared beyond the team, as its workers."""
        return self.role in (Role.ADMIN, Role.OWNER)

    @property
    def is_owner(self) -> bool:
        return self.role == Role.OWNER


class Invitation(models.Model):
    """A link by which one person joins a team. Only the token's SHA-256 is kept."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=10, choices=Role)
    email = models.EmailField(blank=True)  # where it was sent, or whom it is for
    token_sha256 = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(
        User, models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                name="nobody_is_invited_as_owner", condition=~models.Q(role="owner")
            ),
            models.CheckConstraint(
                name="invitation_used_or_revoked",
                condition=models.Q(used_at=None) | models.Q(revoked_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"invitation to {self.team} as {self.role}"


class SignInLink(models.Model):
    """A link that signs its user in once. Only the token's SHA-256 is kept."""

    user = models.ForeignKey(User, models.CASCADE, related_name="sign_in_links")
    token_sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"sign-in link of {self.user}"


class AuditEntry(models.Model):
    """A record of who did what to what, when, from where.

    Rows are added, never changed: the database refuses it (DECISIONS.md, 18). What may
    take one away is in erasing.py.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="audit_entries")
    actor = models.ForeignKey(User, models.SET_NULL, null=True, blank=True)
    verb = models.CharField(max_length=40)  # "run.stop_requested"
    object_type = models.CharField(max_length=40)
    object_id = models.BigIntegerField()
    detail: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(
        default=dict, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
    # From where (request_context.py): a browser's, or the program's that did it.
    address = models.GenericIPAddressField(null=True, blank=True)
    agent = models.CharField(max_length=80, blank=True)  # "Firefox 128 on Linux"
    program = models.CharField(max_length=80, blank=True)  # "training.supervise"
    is_erased = models.BooleanField(default=False)  # the actor's name was erased

    class Meta:
        verbose_name_plural = "audit entries"
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
            models.Index(fields=["team", "actor", "-id"]),
            models.Index(fields=["team", "verb", "-id"]),
            models.Index(fields=["team", "object_type", "object_id", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.object_type} {self.object_id}"
