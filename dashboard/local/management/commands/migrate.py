"""Django's `migrate` without blocking running work.

An ALTER that waits for a lock blocks every later query, even reads. So it gives up
soon, lets them run and retries; finished migrations stay, and the waiting one was
rolled back. A deadlock that PostgreSQL resolves against it is handled in the same way.
"""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.migrations.recorder import MigrationRecorder
from psycopg.errors import DeadlockDetected, LockNotAvailable

from dashboard.project.first_migrations import LAST_BEFORE_SQUASHING, find_gaps

LOCK_SECONDS = 2
TRY_SECONDS = 600
LONGEST_WAIT_SECONDS = 15.0


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        if gaps := find_gaps(MigrationRecorder(connection).applied_migrations()):
            raise CommandError(
                f"An older Cohort made this database, which lacks {gaps[0]}: start "
                f"{LAST_BEFORE_SQUASHING} on it once, then this version."
            )
        began, wait = time.monotonic(), 1.0
        while True:
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            try:
                super().handle(*args, **options)
            except OperationalError as error:
                if not isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
                    raise
                if time.monotonic() - began > TRY_SECONDS:
                    minutes = TRY_SECONDS // 60
                    raise CommandError(
                        "The migration did not get a table lock within "
                        f"{LOCK_SECONDS} s for {minutes} minutes: {str(error).strip()} "
                        "No migration was left half applied. Stop the workers, or end "
                        "the session that holds the lock (see pg_stat_activity), then "
                        "run this command again."
                    ) from error
                self.stderr.write(
                    "A table is locked: the migration waits at most "
                    f"{LOCK_SECONDS} s, then lets other queries run and retries in "
                    f"{wait:.0f} s."
                )
            else:
                return
            finally:
                if connection.connection is not None:
                    with connection.cursor() as cursor:
                        cursor.execute("RESET lock_timeout")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
