"""The answers to a question, as they are written."""

from __future__ import annotations

import json

from channels.db import database_sync_to_async

from dashboard.accounts.sockets import may_watch
from dashboard.live.consumer import StreamConsumer
from dashboard.live.messages import NOT_FOUND, NOT_SIGNED_IN, Position
from dashboard.probes.chat.frames import Texts, frame_of, texts_of
from dashboard.probes.chat.news import group_name
from dashboard.probes.models import Chat


class ChatConsumer(StreamConsumer):
    """For members of the team that asked."""

    async def find_refusal(self) -> int | None:
        self._chat_id: int = self.scope["url_route"]["kwargs"]["chat_id"]
        user, session = self.scope["user"], self.scope["session"]
        if not user.is_authenticated:
            return NOT_SIGNED_IN
        may = database_sync_to_async(may_watch, thread_sensitive=False)
        if not await may(user.id, session, chats=self._chat_id):
            return NOT_FOUND
        self._sent: tuple[int, Texts] = getattr(self, "_sent", (0, {}))
        return None

    def group(self) -> str:
        return group_name(self._chat_id)

    async def read_after(
        self, position: Position, rung: int | None
    ) -> tuple[Position, str] | None:
        find = database_sync_to_async(_find_newer, thread_sensitive=False)
        chat = await find(self._chat_id, position.seq)
        if chat is None:
            return None
        seq, texts = self._sent
        had = texts if seq and position.seq == seq else None
        frame = frame_of(chat, after=position.seq, had=had)
        self._sent = (chat.seq, texts_of(chat))
        return Position(seq=chat.seq, epoch=1), json.dumps(frame)


def _find_newer(chat_id: int, seq: int) -> Chat | None:
    return Chat.objects.filter(pk=chat_id, seq__gt=seq).first()
