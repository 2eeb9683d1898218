"""Where a person is signed in, and how that ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from allauth.usersessions.models import UserSession
from django.http import HttpRequest

from dashboard.accounts.members import end_sessions
from dashboard.accounts.models import User

# More than one of them is named in an agent's text; the first that is counts.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
    ("curl", "curl"),
)
SYSTEMS = ("Windows", "Android", "iPhone", "iPad", "Mac OS X", "Linux")


@dataclass(frozen=True, slots=True)
class OpenSession:
    pk: int
    browser: str
    ip: str
    since: datetime
    is_this: bool


def list_sessions(request: HttpRequest, user: User) -> list[OpenSession]:
    """The newest first; those that have ended are forgotten on the way."""
    found = UserSession.objects.purge_and_list(user)
    key = request.session.session_key
    return [
        OpenSession(
            pk=one.pk,
            browser=browser_of(one.user_agent),
            ip=one.ip,
            since=one.created_at,
            is_this=one.session_key == key,
        )
        for one in sorted(found, key=lambda one: one.created_at, reverse=True)
    ]


def remember_session(request: HttpRequest) -> None:
    UserSession.objects.create_from_request(request)


def end_session(user: User, pk: int) -> bool:
    found = UserSession.objects.filter(user=user, pk=pk).first()
    if found is not None:
        found.end()
    return found is not None


def end_others(request: HttpRequest, user: User) -> int:
    """Also those that are on no list, such as of a sign-in long ago."""
    key = request.session.session_key or ""
    UserSession.objects.filter(user=user).exclude(session_key=key).delete()
    return end_sessions(user, but=key)


def browser_of(agent: str) -> str:
    """What somebody recognises of it.

    >>> browser_of("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0")
    'Firefox 140 on Linux'
    """
    for word, name in BROWSERS:
        if version := re.search(rf"{word}\w*/(\d+)", agent):
            system = next((one for one in SYSTEMS if one in agent), "")
            of_system = f" on {system.replace('Mac OS X', 'macOS')}" if system else ""
            return f"{name} {version[1]}{of_system}"
    return agent[:60] or "unknown browser"
