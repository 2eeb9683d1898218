from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.local.data_folder import LocalFault
from dashboard.local.supervisor import Stop, stop_on_signals
from dashboard.operations.backups import (
    RETRY,
    BackupFault,
    database,
    delete_abandoned_parts,
    delete_old_backups,
    find_wait,
    make_backup,
    name_backup,
)


class Command(BaseCommand):
    help = "Back up this server to one file. It can keep running."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        place = parser.add_mutually_exclusive_group(required=True)
        place.add_argument(
            "file", nargs="?", type=Path, help="new file, ideally on another disk"
        )
        place.add_argument(
            "--into",
            type=Path,
            metavar="FOLDER",
            help="write a file named by its time to this folder",
        )
        parser.add_argument(
            "--keep",
            type=_positive,
            metavar="N",
            help="then delete all but the newest N backups in the folder",
        )
        parser.add_argument(
            "--every",
            type=_positive,
            metavar="HOURS",
            help="repeat, with this many hours between backups",
        )
        parser.add_argument(
            "--without-checkpoints",
            action="store_true",
            help="leave out run checkpoints; published models are included",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        folder: Path | None = options["into"] and options["into"].absolute()
        if folder is None and (options["keep"] or options["every"]):
            raise CommandError("--keep and --every require --into FOLDER.")
        if folder is None:
            self._make(options["file"].absolute(), options)
        elif options["every"] is None:
            self._make_next(folder, options)
        else:
            stop_on_signals()
            try:
                every = timedelta(hours=options["every"])
                while True:
                    try:
                        wait = find_wait(folder, every=every, now=timezone.now())
                        time.sleep(wait.total_seconds())
                        self._make_next(folder, options)
                    except (CommandError, BackupFault) as error:
                        seconds = RETRY.total_seconds()
                        self.stderr.write(
                            f"{error} Next attempt in {seconds / 60:.0f} minutes."
                        )
                        time.sleep(seconds)
                    finally:
                        connection.close()  # it would be idle for hours
            except Stop:
                self.stderr.write("Stopped. No incomplete file was left.")

    def _make_next(self, folder: Path, options: dict[str, Any]) -> None:
        self._make(name_backup(folder, timezone.now()), options)
        delete_abandoned_parts(folder, timezone.now())
        if options["keep"] is not None:
            for path in delete_old_backups(folder, keep=options["keep"]):
                self.stdout.write(
                    f"{path}: deleted; {options['keep']} newer backups remain."
                )

    def _make(self, path: Path, options: dict[str, Any]) -> None:
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
            raise CommandError(f"Backup failed: {error}") from error
        self.stdout.write(
            f"{path}: the database and {made.num_files:,} files, "
            f"{num_bytes(path.stat().st_size)}. It contains password hashes and other "
            "credentials: store it as you store keys."
        )


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ArgumentTypeError(f"must be an integer from 1 to 10,000; got {text}")
    return int(text)
