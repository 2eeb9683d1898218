from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from trainer.rewards.sandbox.levels import LEVELS, obstacle
from trainer.rewards.sandbox.probe import fault


class Command(BaseCommand):
    help = (
        "Try the sandboxes that run reward code: A is bubblewrap, B the kernel's "
        "filters alone. Fails where there is neither."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def handle(self, *_args: Any, **_options: Any) -> None:
        reasons = {level: obstacle(level) or fault(level) for level in LEVELS}
        for level, reason in reasons.items():
            self.stdout.write(f"Level {level}: {reason or 'works'}.")
        working = [level for level, reason in reasons.items() if reason is None]
        if not working:
            raise CommandError(
                "Reward code cannot run on this machine. Install bubblewrap, or use "
                "Linux 5.13 or newer; rules without code work as they are."
            )
        self.stdout.write(f"Reward code runs at level {working[0]}.")
