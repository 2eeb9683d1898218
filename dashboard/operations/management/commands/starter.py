from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.accounts.models import Team
from dashboard.accounts.services import create_first_team
from dashboard.supervision.starter import GAME, copy_starter, launch_starter_run


class Command(BaseCommand):
    help = "Create the first user and team, the starter model and a first run."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.ending = ""  # `up` prints it among its own lines
        user = create_first_team()
        team = Team.objects.filter(members=user).earliest("pk")
        try:
            run = launch_starter_run(team=team, user=user, folder=copy_starter())
            copy_starter(GAME)
        except (OSError, ValueError) as fault:  # such as a full disk or quota
            raise CommandError(str(fault)) from fault
        if run is not None:
            self.stdout.write(f"  Launched the first run, {run}.\n")
