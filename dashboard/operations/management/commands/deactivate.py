from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from dashboard.accounts.members import switch_person
from dashboard.operations.management.commands import find_person, name


class Command(BaseCommand):
    help = "Sign a user out everywhere and block sign-in; --undo reverses it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument("--undo", action="store_true")

    def handle(self, *_args: Any, **options: Any) -> None:
        person = find_person(options["username"])
        switch_person(person, is_active=options["undo"], by=None)
        state = "can sign in again" if options["undo"] else "is deactivated"
        self.stdout.write(f"{person.username} {state}.")
