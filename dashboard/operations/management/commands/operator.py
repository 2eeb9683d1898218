from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.accounts.models import User
from dashboard.operations.management.commands import name


class Command(BaseCommand):
    help = "Grant a user access to the operator pages (/admin/), or revoke it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument("--no", action="store_true", help="revoke access")

    def handle(self, *_args: Any, **options: Any) -> None:
        name, is_staff = options["username"], not options["no"]
        if not User.objects.filter(username=name).update(is_staff=is_staff):
            raise CommandError(f"User {name!r} not found.")
        result = (
            "is now an operator and can open /admin/"
            if is_staff
            else "is no longer an operator"
        )
        self.stdout.write(f"{name} {result}.")
