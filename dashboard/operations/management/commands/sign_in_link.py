from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection
from django.urls import reverse

from dashboard.accounts.models import User
from dashboard.accounts.services import create_first_team, create_sign_in_link
from dashboard.operations.management.commands import name


class Command(BaseCommand):
    help = "Print a link that signs a user in once, within 15 minutes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--user", type=name, help="username; default: the first team's owner"
        )
        parser.add_argument(
            "--base-url",
            help="URL of this server; default: COHORT_URL, or http://localhost:PORT",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            connection.ensure_connection()
        except OperationalError as error:
            raise CommandError(
                f"Cohort does not run with the data in {settings.COHORT_DATA}. Start "
                "it, or set COHORT_DATA and COHORT_PORT as it was started with. "
                f"{error}"
            ) from None
        username = options["user"]
        try:
            user = (
                create_first_team()
                if username is None
                else User.objects.get(username=username, is_active=True)
            )
        except User.DoesNotExist:
            names = ", ".join(
                User.objects.filter(is_active=True)
                .order_by("username")
                .values_list("username", flat=True)[:10]
            )
            raise CommandError(
                f"Active user {username!r} not found. Users: {names or 'none'}."
            ) from None
        base = options["base_url"] or settings.PUBLIC_URL
        token = create_sign_in_link(user)
        self.stdout.write(base.rstrip("/") + reverse("sign_in_link", args=[token]))
