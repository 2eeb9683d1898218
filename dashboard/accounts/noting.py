"""Writes down in each team of a person how they may sign in from now on."""

from __future__ import annotations

from typing import Any

from allauth.account.signals import email_changed, password_reset
from allauth.mfa.signals import (
    authenticator_added,
    authenticator_removed,
    authenticator_reset,
)
from django.dispatch import receiver

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record


def note(user: User, verb: str, **detail: str) -> None:
    for team in Team.objects.filter(members=user):
        record(team, user, verb, user, username=user.username, **detail)


@receiver(authenticator_added)
def factor_added(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    note(user, "person.factor_added", kind=authenticator.type)


@receiver(authenticator_removed)
def factor_removed(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    note(user, "person.factor_removed", kind=authenticator.type)


@receiver(authenticator_reset)
def factor_reset(*, user: User, authenticator: Any, **_kwargs: Any) -> None:
    note(user, "person.factor_reset", kind=authenticator.type)


@receiver(password_reset)
def password_was_reset(*, user: User, **_kwargs: Any) -> None:
    note(user, "person.password_reset")


@receiver(email_changed)
def email_was_changed(*, user: User, **_kwargs: Any) -> None:
    note(user, "person.email_changed")
