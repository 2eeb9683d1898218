from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dashboard.supervision.workers import training_device


class Command(BaseCommand):
    help = "Show which device runs train on here, and why."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(f"  {training_device()}")
