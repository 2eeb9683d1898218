"""Writes teams, sign-in links and audit entries."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from allauth.account.signals import email_changed, password_reset
from allauth.mfa.signals import (
    authenticator_added,
    authenticator_removed,
    authenticator_reset,
)
from django.db import models, transaction
from django.dispatch import receiver
from django.utils import timezone

from dashboard.accounts.models import (
    AuditEntry,
    Membership,
    Role,
    SignInLink,
    Team,
    User,
)
from dashboard.accounts.request_context import current_context
from dashboard.observability.logging import current_request_id
from dashboard.project.errors import UserError

SIGN_IN_LINK_LIFETIME = timedelta(minutes=15)
MAX_DETAIL_CHARS = 2_000  # characters that an entry keeps of a text
# First parts of addresses that are pages of Cohort.
RESERVED_SLUGS = frozenset(
    {"account", "admin", "api", "authorize", "healthz", "help", "invitation", "mcp"}
    | {"metrics", "public", "readyz", "register", "sign-in", "sign-out", "static"}
    | {"teams", "token", "ws"}
)


def record(
    team: Team, actor: User | None, verb: str, obj: models.Model, **detail: Any
) -> AuditEntry:
    """Add an audit entry: record(team, user, "run.launched", run).

    The request context adds the address, browser or program.
    """
    [entry] = record_each(team, actor, verb, [obj], **detail)
    return entry


def record_each(
    team: Team,
    actor: User | None,
    verb: str,
    objects: Iterable[models.Model],
    **detail: Any,
) -> list[AuditEntry]:
    """Record several things at once: an entry for each, in one statement."""
    context = current_context()
    if request_id := current_request_id():  # by which the log is searched
        detail = {**detail, "request_id": request_id}
    return AuditEntry.objects.bulk_create(
        AuditEntry(
            team=team,
            actor=actor,
            verb=verb,
            object_type=obj._meta.model_name or "",
            object_id=obj.pk,
            detail=detail,
            address=context.address,
            agent=context.agent,
            program=context.program,
        )
        for obj in objects
    )


def last_entry(team: Team, obj: models.Model, *verbs: str) -> AuditEntry | None:
    entries = AuditEntry.objects.filter(
        team=team,
        object_type=obj._meta.model_name or "",
        object_id=obj.pk,
        verb__in=verbs,
    )
    return entries.select_related("actor").order_by("-id").first()


def describe_change(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Old and new values of changed fields, for an audit entry."""
    olds = {name: _cut(before[name]) for name in after}
    return {"before": olds, "after": {n: _cut(value) for n, value in after.items()}}


def _cut(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= MAX_DETAIL_CHARS:
        return value
    size = f"{MAX_DETAIL_CHARS:,} of {len(value):,} characters"
    return f"{value[:MAX_DETAIL_CHARS]}… ({size})"


@transaction.atomic
def create_team(*, slug: str, name: str, owner: User) -> Team:
    if slug in RESERVED_SLUGS:
        raise UserError(
            "teams.reserved_address",
            f"The team address {slug!r} is reserved. Choose another one.",
        )
    team = Team.objects.create(slug=slug, name=name)
    Membership.objects.create(user=owner, team=team, role=Role.OWNER)
    record(team, owner, "team.created", team, slug=slug)
    return team


@transaction.atomic
def create_first_team(
    *, username: str = "owner", slug: str = "lab", name: str = "Lab"
) -> User:
    """Return the owner of the first team; create both if there is no team yet."""
    first = (
        Membership.objects.filter(role=Role.OWNER, user__is_active=True)
        .select_related("user")
        .order_by("pk")
        .first()
    )
    if first is not None:
        return first.user
    owner, made = User.objects.get_or_create(username=username)
    if made:
        owner.set_unusable_password()
        owner.save(update_fields=["password"])
    create_team(slug=slug, name=name, owner=owner)
    return owner


def create_sign_in_link(user: User) -> str:
    """Create a link's token that signs this user in once, within 15 minutes."""
    token = secrets.token_urlsafe(32)
    SignInLink.objects.create(
        user=user,
        token_sha256=digest(token),
        expires_at=timezone.now() + SIGN_IN_LINK_LIFETIME,
    )
    return token


def find_sign_in_link(token: str) -> SignInLink | None:
    """Find the link, if it still works; this does not use it up."""
    return _working_links(token).select_related("user").first()


def consume_sign_in_link(token: str) -> User | None:
    """Return the link's user, for the first caller only."""
    # Of two requests at the same time, only one finds used_at empty.
    won = _working_links(token).update(used_at=timezone.now())
    if not won:
        return None
    return User.objects.get(sign_in_links__token_sha256=digest(token))


def _working_links(token: str) -> models.QuerySet[SignInLink]:
    return SignInLink.objects.filter(
        token_sha256=digest(token),
        used_at__isnull=True,
        expires_at__gt=timezone.now(),
        # joined to the users, an update would look for its rows in a subquery, which
        # PostgreSQL does not ask again after it has waited for someone else's update
        user__in=User.objects.filter(is_active=True),
    )


def digest(token: str) -> str:
    """SHA-256 is enough: 256 random bits cannot be guessed one by one."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def record_in_teams(user: User, verb: str, **detail: str) -> None:
    """Record an entry in each team of the person, as of how they may sign in from now
    on.
    """
    for team in Team.objects.filter(members=user):
        record(team, user, verb, user, username=user.username, **detail)


@receiver(authenticator_added)
def factor_added(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    record_in_teams(user, "person.factor_added", kind=authenticator.type)


@receiver(authenticator_removed)
def factor_removed(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    record_in_teams(user, "person.factor_removed", kind=authenticator.type)


@receiver(authenticator_reset)
def factor_reset(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    record_in_teams(user, "person.factor_reset", kind=authenticator.type)


@receiver(password_reset)
def password_was_reset(*, user: User, **_kwargs: Any) -> None:
    record_in_teams(user, "person.password_reset")


@receiver(email_changed)
def email_was_changed(*, user: User, **_kwargs: Any) -> None:
    record_in_teams(user, "person.email_changed")
