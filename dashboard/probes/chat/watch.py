"""What a desk heeds while its models work on a question."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from dashboard.probes.chat.warm import CannotAnswer, Models
from dashboard.probes.models import HELD, Chat, ProbeState
from trainer.rewards.child import NoReply

LEASE = timedelta(seconds=60)
LOOK_SECONDS = 0.5
MOST_SECONDS = 600.0  # of one question, loading included


@dataclass(frozen=True, slots=True)
class Claim:
    chat_id: int
    token: uuid.UUID

    @property
    def row(self) -> QuerySet[Chat]:
        return Chat.objects.filter(pk=self.chat_id, claim=self.token, state__in=HELD)


class Ended(Exception):
    """Stopped by a person, or taken from us."""


class PutBack(Exception):
    """The worker ends, or a run has begun that needs the GPU."""


class Watch:
    """Looks twice a second whether the answers are still wanted, and may go on."""

    def __init__(self, claim: Claim, *, must_let_go: Callable[[], bool]) -> None:
        self._claim = claim
        self._must_let_go = must_let_go
        self._deadline = time.monotonic() + MOST_SECONDS
        self._due = 0.0

    def look(self) -> None:
        """
        Raises:
            PutBack: others need what the models hold.
            Ended: nobody wants the rest.
            CannotAnswer: it takes too long.
        """
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        if self._must_let_go():
            raise PutBack
        wanted = self._claim.row.filter(state=ProbeState.RUNNING)
        if not wanted.update(lease_until=Now() + LEASE):
            raise Ended
        if now > self._deadline:
            raise CannotAnswer(
                f"The answers took more than {MOST_SECONDS / 60:.0f} minutes and were "
                "ended there. Ask for fewer completions or tokens."
            )


def read(models: Models, watch: Watch) -> dict[str, Any]:
    """The models' next line; raises as `Watch.look`, or NoReply."""
    while True:
        watch.look()
        try:
            return models.child.read(timeout_seconds=LOOK_SECONDS)
        except NoReply:
            if not models.child.is_alive():
                raise
