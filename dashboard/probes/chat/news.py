"""What changes about a question, and who hears of it."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from dashboard.live.publish import ring_group
from dashboard.probes.models import Chat


def group_name(chat_id: int) -> str:
    return f"chat-{chat_id}"


def change(chat_id: int, rows: QuerySet[Chat], **values: Any) -> bool:
    """A guarded UPDATE of this question, which open pages hear of; was it still so?"""
    if not rows.filter(pk=chat_id).update(seq=F("seq") + 1, **values):
        return False
    # A page reads the row, whatever number rings.
    ring = transaction.on_commit
    ring(lambda: ring_group(group_name(chat_id), 0), robust=True)
    return True
