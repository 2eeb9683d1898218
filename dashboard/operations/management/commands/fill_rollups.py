from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.runs.models import Run
from dashboard.supervision.rollups import fill_rollups


class Command(BaseCommand):
    help = (
        "Compute the rollups that the signal charts and the Prompts tab need, for "
        "runs from older versions. You can interrupt and repeat it; finished "
        "steps are skipped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run", type=int, help="only this run, by its ID")

    def handle(self, *_args: Any, run: int | None, **_options: Any) -> None:
        runs = Run.objects.order_by("pk")
        if run is not None:
            runs = runs.filter(pk=run)
            if not runs:
                raise CommandError(
                    f"Run {run} not found. The ID is in the run page's address."
                )
        for listed_run in runs.iterator():
            if num_filled := fill_rollups(listed_run):
                self.stdout.write(
                    f"Run {listed_run.pk} ({listed_run}): {num_filled:,} steps."
                )
