"""For how long something is not sent."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from django.utils import timezone
from ninja import Schema
from pydantic import Field

from dashboard.alerts.forms import MUTES
from dashboard.api.schemas import Input


class MuteIn(Input):
    mute: Literal["1h", "8h", "1d", "7d"] | None = Field(
        description="For so long from now; null: it is heard again.", examples=["8h"]
    )

    @property
    def until(self) -> datetime | None:
        return timezone.now() + MUTES[self.mute][1] if self.mute else None


class Muted(Schema):
    muted_until: datetime | None
