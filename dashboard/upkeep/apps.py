from __future__ import annotations

from django.apps import AppConfig


class UpkeepConfig(AppConfig):
    name = "dashboard.upkeep"
