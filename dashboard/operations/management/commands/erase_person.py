from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.operations.management.commands import find_person, name
from dashboard.operations.personal_data import count_of, erase


class Command(BaseCommand):
    help = (
        "Delete a user's account and data. Runs, datasets and reports stay with the "
        "team."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument(
            "--yes",
            action="store_true",
            help="delete; without it, only show what refers to the user",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        user = find_person(options["username"])
        named = ", ".join(f"{n:,} {what}" for what, n in count_of(user).items())
        if not options["yes"]:
            self.stdout.write(f"References to {user.username}: {named or 'none'}.")
            self.stdout.write("Nothing was deleted. Use --yes to delete the account.")
            return
        try:
            erase(user)
        except ValueError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Deleted {options['username']}. Former references: {named}.")
