from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.runs.models import Run
from dashboard.training.rollups import fill_rollups


class Command(BaseCommand):
    help = (
        "Make what the signal charts and the Prompts tab read of runs that are older "
        "than these. It may be broken off and run again; steps that have theirs are "
        "passed over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run", type=int, help="this run alone, by its number")

    def handle(self, *_args: Any, run: int | None, **_options: Any) -> None:
        runs = Run.objects.order_by("pk")
        if run is not None:
            runs = runs.filter(pk=run)
            if not runs:
                raise CommandError(
                    f"There is no run {run}. Its number is in its page's address."
                )
        for each in runs.iterator():
            if num_filled := fill_rollups(each):
                self.stdout.write(f"Run {each.pk} ({each}): {num_filled:,} steps.")
