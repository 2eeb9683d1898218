from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from django.contrib.auth import HASH_SESSION_KEY
from django.utils.crypto import constant_time_compare

from dashboard.accounts.models import User
from dashboard.live.consumer import StreamConsumer
from dashboard.live.messages import NOT_FOUND, NOT_SIGNED_IN, Position
from dashboard.live.publish import group_name
from dashboard.runs.feed import feed_of


class RunConsumer(StreamConsumer):
    """The stream of one run, for members of its team."""

    async def find_refusal(self) -> int | None:
        self._run_id: int = self.scope["url_route"]["kwargs"]["run_id"]
        user, session = self.scope["user"], self.scope["session"]
        if not user.is_authenticated:
            return NOT_SIGNED_IN
        may_watch = database_sync_to_async(_may_watch, thread_sensitive=False)
        if not await may_watch(user.id, session, self._run_id):
            return NOT_FOUND
        self._feed = feed_of(self._run_id)
        return None

    def group(self) -> str:
        return group_name(self._run_id)

    async def read_after(
        self, position: Position, rung: int | None
    ) -> tuple[Position, str] | None:
        return await self._feed.read_after(position, rung)


def _may_watch(user_id: int, session: Any, run_id: int) -> bool:
    """Signing out deletes the session, a new password outdates it: both end sockets."""
    member = User.objects.filter(
        id=user_id, is_active=True, memberships__team__runs=run_id
    ).first()
    if member is None or not session.exists(session.session_key):
        return False
    return constant_time_compare(
        session.get(HASH_SESSION_KEY, ""), member.get_session_auth_hash()
    )
