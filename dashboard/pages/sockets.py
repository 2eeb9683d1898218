"""The WebSocket addresses, and the stream of a run."""

from __future__ import annotations

from channels.db import database_sync_to_async
from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from dashboard.accounts.access import may_watch
from dashboard.live.consumer import StreamConsumer
from dashboard.live.messages import NOT_FOUND, NOT_SIGNED_IN, Position
from dashboard.live.pubsub import group_name
from dashboard.runs.stream import feed_of


class RunConsumer(StreamConsumer):
    """The stream of one run, for members of its team."""

    async def find_refusal(self) -> int | None:
        self._run_id: int = self.scope["url_route"]["kwargs"]["run_id"]
        user, session = self.scope["user"], self.scope["session"]
        if not user.is_authenticated:
            return NOT_SIGNED_IN
        may = database_sync_to_async(may_watch, thread_sensitive=False)
        if not await may(user.id, session, runs=self._run_id):
            return NOT_FOUND
        self._feed = feed_of(self._run_id)
        return None

    def group(self) -> str:
        return group_name(self._run_id)

    async def read_after(
        self, position: Position, notified_seq: int | None
    ) -> tuple[Position, str] | None:
        return await self._feed.read_after(position, notified_seq)


websocket_urlpatterns = [
    path("ws/runs/<int:run_id>/", RunConsumer.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # else Channels raises: a 500
]
