from __future__ import annotations

import os
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from dashboard.local.data_folder import (
    LocalFault,
    check_folder,
    check_port,
    close_folder,
    hold_folder,
    keep_reserve,
)
from dashboard.local.redis_server import embedded_postgres, embedded_redis
from dashboard.local.supervisor import (
    Service,
    Stop,
    Supervisor,
    all_processes,
    ignore_signals,
    stop_on_signals,
    wait_until_served,
)


class Output(Protocol):
    """A text stream, or Django's wrapper of one with its `ending` set to nothing."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


@contextmanager
def announce(out: Output, text: str) -> Iterator[None]:
    """`text …` at once, and how long it took when it is done."""
    began = time.monotonic()
    out.write(f"  {text} … ")
    out.flush()
    try:
        yield
    except BaseException:
        out.write("\n")
        raise
    out.write(f"{time.monotonic() - began:.1f} s\n")
    out.flush()


POLL_SECONDS = 0.5


class Command(BaseCommand):
    help = (
        "Run Cohort on this machine: embedded PostgreSQL and Valkey (unless "
        "DATABASE_URL and REDIS_URL are set), web server, workers and a first run."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--no-starter", action="store_true", help="start without the first run"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        self.stdout.ending = ""  # progress shares a line
        stop_on_signals()
        os.umask(0o077)  # of all that it starts: rows, weights and uploads are private
        try:
            with ExitStack() as stack:
                try:
                    self._run(stack, with_starter=not options["no_starter"])
                finally:
                    ignore_signals()
        except Stop:
            self.stdout.write("  Stopped. All data is kept.\n")
        except LocalFault as fault:
            raise CommandError(str(fault)) from fault
        except DatabaseError as error:
            raise CommandError(_explain(error)) from error

    def _run(self, stack: ExitStack, *, with_starter: bool) -> None:
        data: Path = settings.COHORT_DATA
        port: int = settings.COHORT_PORT
        address = f"http://localhost:{port}"  # where passkeys work, too
        check_folder(data)
        stack.enter_context(hold_folder(data, address=address))
        close_folder(data)
        check_port(port)

        servers = self._start_servers(stack, data)
        with announce(self.stdout, "Migrating the database"):
            call_command("migrate", interactive=False, verbosity=0)
        processes = all_processes(data=data, port=port)
        supervisor = Supervisor(processes, servers=servers, report=self._report)
        stack.callback(supervisor.stop)
        with announce(self.stdout, "Starting the web server and workers"):
            supervisor.start()
            wait_until_served(processes[0], port=port)
        call_command("device", stdout=self.stdout)
        link = StringIO()
        call_command("sign_in_link", stdout=link)
        self.stdout.write(
            "\n  The web server is ready. This link signs you in once, within 15 "
            f"minutes:\n\n    {link.getvalue().strip()}\n\n"
            f"  New link: {settings.MAKE_LINK}    Logs: {data / 'logs'}\n\n"
        )
        self.stdout.flush()
        if with_starter:
            try:
                call_command("starter", stdout=self.stdout, stderr=self.stderr)
            except CommandError as error:
                self._report(str(error))
        self.stdout.write("  Cohort is running. Stop it with Ctrl-C.\n")
        self.stdout.flush()
        connection.close()  # `up` only watches from here on
        while True:
            supervisor.check()
            time.sleep(POLL_SECONDS)

    def _start_servers(self, stack: ExitStack, data: Path) -> list[Service]:
        servers: list[Service] = []
        if settings.DATABASE_IS_EMBEDDED:
            keep_reserve(data)
            with announce(self.stdout, "Starting PostgreSQL"):
                postgres = embedded_postgres(data)
                stack.callback(postgres.stop)
                postgres.start(report=self._report_progress)
            servers.append(postgres)
        if settings.REDIS_IS_EMBEDDED:
            with announce(self.stdout, "Starting Valkey"):
                redis = embedded_redis(data)
                stack.callback(redis.stop)
                redis.start()
            servers.append(redis)
        return servers

    def _report_progress(self, text: str) -> None:
        """Within an announced line that has not ended yet."""
        self.stdout.write(f"\n  {text} … ")
        self.stdout.flush()

    def _report(self, text: str) -> None:
        self.stderr.write(f"  {text}")


def _explain(error: DatabaseError) -> str:
    text = str(error).strip()
    if "No space left on device" in text:
        return (
            f"The disk with {settings.COHORT_DATA} is full. Free some space and "
            "start again. No saved data is lost."
        )
    if settings.DATABASE_IS_EMBEDDED:
        return f"The database rejected the connection: {text}"
    return (
        f"The database at DATABASE_URL rejected the connection: {text}. Check the "
        "URL and the server, or unset DATABASE_URL to use the embedded one."
    )
