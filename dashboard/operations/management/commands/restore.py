from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from dashboard.local.data_folder import LocalFault
from dashboard.operations.backups import BackupFault, database, restore_backup


class Command(BaseCommand):
    help = "Restore a backup into an empty server."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "file", type=Path, help="a file that `manage.py backup` wrote"
        )

        parser.add_argument(
            "--take-over",
            action="store_true",
            help="continue its runs and send its alerts, in place of the server that "
            "was backed up; otherwise runs are on hold and alert channels disabled",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        path: Path = options["file"].absolute()
        try:
            if not path.is_file():
                raise CommandError(f"File {path} not found.")
            with database(held=True):
                manifest = restore_backup(
                    path, data=settings.COHORT_DATA, takes_over=options["take_over"]
                )
        except (BackupFault, LocalFault) as fault:
            raise CommandError(str(fault)) from fault
        except (DatabaseError, OSError) as error:
            raise CommandError(f"Restore failed: {error}") from error
        notes = (
            (
                not options["take_over"],
                "Its runs are on hold, and its alert channels are disabled. Release "
                "and enable them on its pages, or restore with --take-over.",
            ),
            (not manifest.has_checkpoints, "The backup has no checkpoints."),
            (
                not manifest.key_is_inside,
                "The backup does not contain the secret key. Start with the server's "
                "COHORT_SECRET_KEY; with another one, webhook secrets change and "
                "authenticator apps stop working.",
            ),
        )
        self.stdout.write(
            f"Restored the database and {manifest.num_files:,} files "
            f"as of {manifest.made_at:%Y-%m-%d %H:%M} UTC. Users must sign in again."
            + "".join(f"\n{note}" for applies, note in notes if applies)
        )
