"""Who may go on watching over a socket."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.db.models import Exists
from django.utils.crypto import constant_time_compare

from dashboard.accounts.models import User


def may_watch(user_id: int, session: Any, **of_team: Any) -> bool:
    """Is the user in a team for which this holds, such as `runs=7`?

    Signing out deletes the session, a new password outdates it: both end sockets. One
    query: it is asked for each page twice a minute.
    """
    teams = {f"memberships__team__{name}": value for name, value in of_team.items()}
    member = (
        User.objects.filter(id=user_id, is_active=True, **teams)
        .filter(Exists(Session.objects.filter(session_key=session.session_key)))
        .only("password")
        .first()
    )
    if member is None:
        return False
    return constant_time_compare(
        session.get(HASH_SESSION_KEY, ""), member.get_session_auth_hash()
    )
