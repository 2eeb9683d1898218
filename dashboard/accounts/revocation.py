"""Tells open sockets at once that somebody may look at less than before.

By signals, so that it holds for every way in which a row changes: a page, a command,
the end of a team. What a queryset's update() changes waits for the look twice a
minute.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from dashboard.accounts.models import Membership, User
from dashboard.live.publish import ring_access_on_commit

MATTERS = {"is_active", "password"}


@receiver([post_delete, post_save], sender=Membership)
def membership_changed(*, instance: Membership, **_kwargs: Any) -> None:
    ring_access_on_commit(instance.user_id)


@receiver(post_save, sender=User)
def person_changed(
    *,
    instance: User,
    created: bool,
    update_fields: frozenset[str] | None,
    **_kwargs: Any,
) -> None:
    is_about_access = update_fields is None or MATTERS & update_fields
    if is_about_access and not created:
        ring_access_on_commit(instance.pk)


@receiver(post_delete, sender=Session)
def session_ended(*, instance: Session, **_kwargs: Any) -> None:
    user_id = instance.get_decoded().get(SESSION_KEY)
    if user_id is not None:
        ring_access_on_commit(int(user_id))
