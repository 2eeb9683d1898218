from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.accounts.models import User
from dashboard.operations.management.commands import name


class Command(BaseCommand):
    help = "Let a person into the operators' pages (/admin/), or no longer."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument("--no", action="store_true", help="no longer")

    def handle(self, *_args: Any, **options: Any) -> None:
        name, is_staff = options["username"], not options["no"]
        if not User.objects.filter(username=name).update(is_staff=is_staff):
            raise CommandError(f"There is no person {name!r}.")
        say = "is an operator: /admin/ opens" if is_staff else "is no operator"
        self.stdout.write(f"{name} {say}.")
