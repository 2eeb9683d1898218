from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.accounts.models import Team
from dashboard.accounts.services import create_first_team
from dashboard.local.terminal import ProgressBar
from dashboard.training.starter import (
    StarterFault,
    is_warmed_up,
    launch_starter_run,
    starter_folder,
    warm_up,
)


class Command(BaseCommand):
    help = "Create the first user and team, the starter model and a first run."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.ending = ""  # progress shares a line
        user = create_first_team()
        team = Team.objects.filter(members=user).earliest("pk")
        try:
            self._make_model()
            run = launch_starter_run(team=team, user=user, folder=starter_folder())
        except (StarterFault, ValueError) as fault:  # such as a full quota
            raise CommandError(str(fault)) from fault
        if run is not None:
            self.stdout.write(f"  Launched the first run, {run}.\n")

    def _make_model(self) -> None:
        folder = starter_folder()
        if is_warmed_up(folder):
            return
        bar = ProgressBar(
            self.stdout, "Creating the starter model (once, 1 to 2 minutes)"
        )
        warm_up(
            folder,
            show=lambda phase, done, total: bar.show(
                phase=phase, done=done, total=total
            ),
        )
        bar.finish()
