from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from dashboard.local.faults import LocalFault
from dashboard.upkeep.backups.faults import BackupFault
from dashboard.upkeep.backups.making import make_backup
from dashboard.upkeep.backups.servers import database


class Command(BaseCommand):
    help = "Write all of this server to one file, while it runs or not."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="a new file, best on another disk")
        parser.add_argument(
            "--without-checkpoints",
            action="store_true",
            help="leave out the runs' checkpoints; published models are kept",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        path: Path = options["file"].absolute()
        try:
            with database(held=False):
                made = make_backup(
                    path,
                    data=settings.COHORT_DATA,
                    with_checkpoints=not options["without_checkpoints"],
                )
        except (BackupFault, LocalFault) as fault:
            raise CommandError(str(fault)) from fault
        except (DatabaseError, OSError) as error:
            raise CommandError(f"No backup was made: {error}") from error
        self.stdout.write(
            f"{path}: {made.num_rows:,} rows of {made.num_tables} tables and "
            f"{made.num_files:,} files, {made.num_bytes / 2**20:,.1f} MiB. It holds "
            "what signs people in: keep it where you keep keys."
        )
