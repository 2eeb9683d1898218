from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.accounts.models import Team
from dashboard.accounts.services import record
from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.operations.management.commands import name
from dashboard.operations.models import Quota
from dashboard.operations.quotas import quota_usage

UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_BYTES = 10**18


class Command(BaseCommand):
    help = "Show or change a team's quota and usage."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("team", type=name, help="team address, as in its URLs")
        parser.add_argument(
            "--storage", help="storage limit, such as 500GiB or 2TiB, or none"
        )
        parser.add_argument("--runs", help="limit on runs that have not ended, or none")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            team = Team.objects.get(slug=options["team"])
        except Team.DoesNotExist:
            slugs = ", ".join(Team.objects.values_list("slug", flat=True)[:10])
            raise CommandError(
                f"Team {options['team']!r} not found. Teams: {slugs or 'none'}."
            ) from None
        changes: dict[str, int | None] = {}
        if options["storage"] is not None:
            changes["max_bytes"] = read_bytes(options["storage"])
        if options["runs"] is not None:
            changes["max_runs"] = read_count(options["runs"])
        if changes:
            Quota.objects.update_or_create(team=team, defaults=changes)
            record(team, None, "team.quota_changed", team, **changes)
        now = quota_usage(team)
        storage = "any" if now.max_bytes is None else num_bytes(now.max_bytes)
        runs = "unlimited" if now.max_runs is None else f"{now.max_runs:,}"
        self.stdout.write(
            f"{team}: storage {num_bytes(now.num_bytes)} of {storage}; runs that have "
            f"not ended {now.num_runs:,} of {runs}."
        )


def read_bytes(text: str) -> int | None:
    if text.lower() == "none":
        return None
    # More digits exceed the database's bigint.
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?|\d{1,18}) ?([a-zA-Z]*)", text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit >= MOST_BYTES:
        raise CommandError(
            "--storage must be a number with MB, GB, TB, MiB, GiB or TiB, or "
            f"none; got {text[:60]!r}."
        )
    return int(float(match[1]) * unit)


def read_count(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not re.fullmatch(r"\d{1,7}", text) or int(text) > 10**6:
        raise CommandError(f"--runs must be an integer or none; got {text[:60]!r}.")
    return int(text)
