"""Open sessions, known browsers, and the end of sockets when access ends."""

from __future__ import annotations

import re
import secrets
from typing import Any

from allauth.usersessions.models import UserSession
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseSessions
from django.contrib.sessions.models import Session
from django.core import signing
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponseBase

from dashboard.accounts.members import end_sessions
from dashboard.accounts.models import Membership, User
from dashboard.live.pubsub import notify_access_on_commit
from dashboard.project.database import fetch_all
from dashboard.web.budgets import (
    DEVICE_COOKIE,
    DEVICE_SALT,
    DEVICE_SECONDS,
    read_device,
)

# More than one of them is named in an agent's text; the first that is counts.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
    ("curl", "curl"),
)
SESSION = """SELECT session_data, expire_date FROM django_session
    WHERE session_key = %s AND expire_date > now()"""
SYSTEMS = ("Windows", "Android", "iPhone", "iPad", "Mac OS X", "Linux")


class SessionStore(DatabaseSessions):
    """Django's store, with one fixed statement in place of an ORM query a request."""

    def _get_session_from_db(self) -> Session | None:
        rows = fetch_all(SESSION, [self.session_key], is_prepared=True)
        if not rows:
            self._session_key = None
            return None
        data, end = rows[0]
        key = self.session_key or ""
        return Session(session_key=key, session_data=data, expire_date=end)


def list_sessions(request: HttpRequest, user: User) -> list[dict[str, Any]]:
    """List sessions, newest first; those that have ended are deleted on the way."""
    sessions = UserSession.objects.purge_and_list(user)
    key = request.session.session_key
    return [
        {
            "pk": session.pk,
            "browser": browser_of(session.user_agent),
            "ip": session.ip,
            "since": session.created_at,
            "is_this": session.session_key == key,
        }
        for session in sorted(
            sessions, key=lambda session: session.created_at, reverse=True
        )
    ]


def remember_session(request: HttpRequest) -> None:
    UserSession.objects.create_from_request(request)


def end_session(user: User, pk: int) -> bool:
    session = UserSession.objects.filter(user=user, pk=pk).first()
    if session is not None:
        session.end()
    return session is not None


def end_others(request: HttpRequest, user: User) -> int:
    """Includes sessions without a record, such as those of old sign-ins."""
    key = request.session.session_key or ""
    UserSession.objects.filter(user=user).exclude(session_key=key).delete()
    return end_sessions(user, but=key)


def browser_of(agent: str) -> str:
    """Name the browser as someone recognises it.

    >>> browser_of("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0")
    'Firefox 140 on Linux'
    """
    for word, name in BROWSERS:
        if version := re.search(rf"{word}\w*/(\d+)", agent):
            system = next((system for system in SYSTEMS if system in agent), "")
            of_system = f" on {system.replace('Mac OS X', 'macOS')}" if system else ""
            return f"{name} {version[1]}{of_system}"
    return agent[:60] or "unknown browser"


def find_device(request: HttpRequest, username: str) -> str:
    """Return the device's own name, if this very user has signed in from it; else
    "".
    """
    owner = read_device(request.COOKIES.get(DEVICE_COOKIE, ""))
    # As the form finds users: "Alice" may be another account.
    is_same = owner.get("username") == User.normalize_username(username.strip())
    return owner["device"] if is_same else ""


def remember_device(response: HttpResponseBase, user: User) -> None:
    device = {
        "username": user.username,
        "device": secrets.token_urlsafe(16),
        "account": f"person:{user.pk}",
    }
    response.set_cookie(
        DEVICE_COOKIE,
        signing.dumps(device, salt=DEVICE_SALT),
        max_age=DEVICE_SECONDS,
        httponly=True,
        samesite="Lax",
    )


# Sockets are notified by signals, so that it holds however a row changes: by a page, a
# command, the end of a team. What a queryset's update() changes waits for the check
# twice a minute.


@receiver([post_delete, post_save], sender=Membership)
def membership_changed(*, instance: Membership, **_kwargs: Any) -> None:
    notify_access_on_commit(instance.user_id)


@receiver(post_save, sender=User)
def person_changed(
    *,
    instance: User,
    created: bool,
    update_fields: frozenset[str] | None,
    **_kwargs: Any,
) -> None:
    is_about_access = update_fields is None or {"is_active", "password"} & update_fields
    if is_about_access and not created:
        notify_access_on_commit(instance.pk)


@receiver(post_delete, sender=Session)
def session_ended(*, instance: Session, **_kwargs: Any) -> None:
    user_id = instance.get_decoded().get(SESSION_KEY)
    if user_id is not None:
        notify_access_on_commit(int(user_id))
