from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.operations.management.commands import find_person, name
from dashboard.operations.personal_data import count_of, erase


class Command(BaseCommand):
    help = "Delete a person's account and data; teams keep what was made for them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument("--yes", action="store_true", help="do it, not only tell")

    def handle(self, *_args: Any, **options: Any) -> None:
        user = find_person(options["username"])
        named = ", ".join(f"{n:,} {what}" for what, n in count_of(user).items())
        if not options["yes"]:
            self.stdout.write(f"{user.username} is named by {named or 'nothing'}.")
            self.stdout.write("Nothing deleted. Use --yes to delete the account.")
            return
        try:
            erase(user)
        except ValueError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{options['username']} is deleted, once named by {named}.")
