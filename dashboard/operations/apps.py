from __future__ import annotations

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "dashboard.operations"
    label = "upkeep"  # of its tables
