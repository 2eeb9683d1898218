"""Browsers that somebody has signed in from before.

Each keeps a signed cookie, OWASP's device cookie: it signs nobody in, but wrong
passwords from elsewhere do not count against who has it.
"""

from __future__ import annotations

import secrets

from django.core import signing
from django.http import HttpRequest, HttpResponseBase

from dashboard.accounts.models import User

COOKIE = "cohort_device"
SALT = "accounts.known_devices"
KEPT_SECONDS = 180 * 24 * 3_600


def find_device(request: HttpRequest, username: str) -> str:
    """The device's own name, where this very user has signed in from it; else ""."""
    try:
        known = signing.loads(
            request.COOKIES.get(COOKIE, ""), salt=SALT, max_age=KEPT_SECONDS
        )
    except signing.BadSignature:
        return ""
    # As the form looks for it: "Alice" may be another one, who vouches for herself.
    is_same = known["username"] == User.normalize_username(username.strip())
    return str(known["device"]) if is_same else ""


def remember_device(response: HttpResponseBase, user: User) -> None:
    device = {"username": user.username, "device": secrets.token_urlsafe(16)}
    response.set_cookie(
        COOKIE,
        signing.dumps(device, salt=SALT),
        max_age=KEPT_SECONDS,
        path="/sign-in/",
        httponly=True,
        samesite="Lax",
    )
