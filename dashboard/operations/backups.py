"""Backups of a whole server: made, restored, and the old ones deleted.

A backup is a tar file: `database.dump` by pg_dump, the files of the data folder, and
last `backup.json`, which has the SHA-256 of each part; an incomplete file lacks it.
Files with several names, such as kept checkpoints, are in it once.

It is made while Cohort runs: first a snapshot of the rows, then files, since files are
written before the rows that name them. A file may be newer than its rows, as after a
crash.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Literal

from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from psycopg import sql
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from dashboard.alerts.models import Channel
from dashboard.local.data_folder import LocalFault, hold_folder, private_folder
from dashboard.local.postgres import find_program
from dashboard.local.redis_server import embedded_postgres
from dashboard.project.database import fetch_all
from dashboard.project.first_migrations import (
    LAST_BEFORE_SQUASHING,
    find_gaps,
    known_migrations,
)
from dashboard.runs.models import ENDED, Run

MANIFEST, DUMP = "backup.json", "database.dump"
LAST_BACKUP = "last-backup.json"
DRAFT = ".restoring"
NAME = re.compile(r"cohort-(\d{8}T\d{6}Z)\.tar")
TIME_FORMAT = "%Y%m%dT%H%M%SZ"
RETRY = timedelta(minutes=10)  # after a failure
ABANDONED = timedelta(days=1)  # since a partial file was last written to
# Servers, their logs and derived files, by name prefix.
SKIPPED_FOLDERS = ("postgres", "postgres.new", "sockets", "logs", "cache", "tokens")
SKIPPED_FILES = ("up.lock", "beat-schedule", "bench", "last-backup", ".")
KEY_FILE = "secret-key"
CHECKPOINTS = ("checkpoints", "kept")  # in runs/<id>
FIRST_WITH_TIMEOUT = 17  # its pg_restore sets what older servers do not know
# Not those of extensions.
FUNCTIONS = """
    SELECT p.oid::regprocedure::text FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace AND p.prokind = 'f'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""


class BackupFault(Exception):
    """Why nothing was backed up or restored, and what to do."""


class Manifest(BaseModel):
    """`backup.json`, the last part of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2]
    made_at: AwareDatetime
    postgres: int  # major version
    migrations: list[tuple[str, str]]
    has_checkpoints: bool
    key_is_inside: bool  # False: COHORT_SECRET_KEY came from the environment
    sums: dict[str, str]  # SHA-256 by part

    @property
    def num_files(self) -> int:
        return len(self.sums) - 1


def make_backup(path: Path, *, data: Path, with_checkpoints: bool) -> Manifest:
    """Write a new file, readable only by our user; it gets its name once complete.

    BackupFault if the file cannot be written, or no backup would be kept.
    """
    check_place(path, data)
    check_database()
    partial = path.with_name(f"{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                manifest = _write_parts(tar, data, with_checkpoints, path.parent)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    # For the operators' page; the backup is as good without.
    made = {
        "made_at": timezone.now().isoformat(),
        "path": str(path),
        "num_bytes": path.stat().st_size,
    }
    with suppress(OSError):
        (data / LAST_BACKUP).write_text(json.dumps(made), encoding="utf-8")
    return manifest


def check_place(path: Path, data: Path) -> None:
    if path.exists():
        raise BackupFault(f"{path} already exists. Pass the name of a new file.")
    if not path.parent.is_dir():
        raise BackupFault(f"Folder {path.parent} not found. Create it first.")
    if path.resolve().is_relative_to(data.resolve()):
        raise BackupFault(
            f"{path} is in the data folder, so the backup would contain itself and "
            "be lost with the data. Pass a file elsewhere, ideally on another "
            "disk."
        )


def check_database() -> None:
    """Refuse a command without the server's environment, which would use a new, empty
    database.
    """
    if _applied_migrations():
        return
    if settings.DATABASE_IS_EMBEDDED:
        reached = (
            f"the embedded database in {settings.COHORT_DATA}, because DATABASE_URL is "
            "not set"
        )
    else:
        where = connection.settings_dict
        reached = f"{where['NAME']} at {where['HOST'] or 'this machine'}"
    raise BackupFault(
        f"The database has no Cohort tables: {reached}. Run the command with the "
        "server's environment (systemd: /etc/cohort/environment)."
    )


def _write_parts(
    tar: tarfile.TarFile, data: Path, with_checkpoints: bool, beside: Path
) -> Manifest:
    sums: dict[str, str] = {}
    # A tar file states a part's length before the part; /tmp is often in memory.
    with TemporaryFile(dir=beside) as dump:
        # After a restore people sign in again.
        options = ("--exclude-table-data=*.django_session", "--lock-wait-timeout=60s")
        _run("pg_dump", *options, stdout=dump)
        migrations = _applied_migrations()
        # Not by its inode, which a later file may get and be taken for its second name.
        info = tarfile.TarInfo(DUMP)
        info.size = dump.seek(0, os.SEEK_END)
        dump.seek(0)
        _add(tar, sums, info, dump)
    for name, path in list_files(data, with_checkpoints=with_checkpoints):
        # Runs continue during a backup, and delete files.
        with suppress(FileNotFoundError), path.open("rb") as file:
            # A log may grow from here on.
            _add(tar, sums, tar.gettarinfo(arcname=f"data/{name}", fileobj=file), file)
    manifest = Manifest(
        format=2,
        made_at=timezone.now(),
        postgres=_server_version(),
        migrations=migrations,
        has_checkpoints=with_checkpoints,
        key_is_inside=(data / KEY_FILE).exists(),
        sums=sums,
    )
    text = manifest.model_dump_json(indent=1).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
    return manifest


def _add(
    tar: tarfile.TarFile, sums: dict[str, str], info: tarfile.TarInfo, file: IO[bytes]
) -> None:
    reader = _Summing(file)
    tar.addfile(info, reader)
    is_link = info.islnk()  # to the first of a file's names
    sums[info.name] = sums[info.linkname] if is_link else reader.digest.hexdigest()


class _Summing(io.RawIOBase):
    """A file that is read, with the SHA-256 of what was."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block


def list_files(data: Path, *, with_checkpoints: bool) -> Iterator[tuple[str, Path]]:
    """List each file with its name in the backup: "runs/3/run.json"."""
    entries = sorted(data.iterdir()) if data.is_dir() else []
    for entry in entries:
        if entry.name in SKIPPED_FOLDERS or entry.name.startswith(SKIPPED_FILES):
            continue
        # A folder of the data folder may be a link to another disk; no file within is.
        paths = [entry] if entry.is_file() else sorted(entry.rglob("*"))
        for path in paths:
            if path is not entry and (path.is_symlink() or not path.is_file()):
                continue
            name = path.relative_to(data)
            parts = name.parts
            is_of_run = len(parts) > 3 and parts[0] == "runs"
            if with_checkpoints or not (is_of_run and parts[2] in CHECKPOINTS):
                yield name.as_posix(), path


# Restoring: all of it, or nothing.


def restore_backup(path: Path, *, data: Path, takes_over: bool) -> Manifest:
    """BackupFault where the file is damaged or too new, or the server not empty.

    Unless it takes over from the server of the backup, its runs are held and nothing is
    sent to its channels: that server may do both.
    """
    draft = data / DRAFT
    try:
        with reading(path) as tar:
            manifest = read_manifest(tar)
            # BackupFault if it comes from a newer Cohort or PostgreSQL.
            known = known_migrations()
            names = set(manifest.migrations).difference(known, *known.values())
            if unknown := [".".join(key) for key in sorted(names)]:
                raise BackupFault(
                    "A newer version of Cohort made this backup: "
                    f"{_first_three(unknown)} are unknown. Install that version, then "
                    "restore."
                )
            if gaps := find_gaps(manifest.migrations):
                raise BackupFault(
                    f"An older Cohort made this backup, which lacks {gaps[0]}: restore "
                    f"it with {LAST_BEFORE_SQUASHING}, then start this version."
                )
            if manifest.postgres > _server_version():
                raise BackupFault(
                    f"The backup is from PostgreSQL {manifest.postgres}; this server "
                    f"is {_server_version()}. Restore into {manifest.postgres} or "
                    "newer."
                )
            check_empty(data)
            unpack(tar, manifest, draft)
        _find_program("pg_restore")
        # Drop what migrations made, functions included: the dump has its own.
        with connection.cursor() as cursor:
            for table in _list_tables():
                statement = sql.SQL("DROP TABLE {} CASCADE")
                cursor.execute(statement.format(sql.Identifier(table)))
            for (signature,) in fetch_all(FUNCTIONS):
                cursor.execute(f"DROP FUNCTION {signature}")
        moved = []
        try:
            for entry in sorted(draft.glob("data/*")):
                entry.replace(data / entry.name)
                moved.append(entry)
            options = ("--single-transaction", "--strict-names")
            _run("pg_restore", *options, str(draft / DUMP))
        except BaseException:
            for entry in moved:
                (data / entry.name).replace(entry)
            connection.close()
            call_command("migrate", interactive=False, verbosity=0)
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    connection.close()  # it was idle for so long that a proxy may have ended it
    if not takes_over:
        Run.objects.filter(source={}).exclude(state__in=ENDED).update(on_hold=True)
        why = "A backup was restored on this server."
        Channel.objects.filter(is_enabled=True).update(is_enabled=False, gave_up=why)
    call_command("migrate", interactive=False, verbosity=0)
    return manifest


@contextmanager
def reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, mode="r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError) as error:
        raise BackupFault(
            f"{path} is not a valid backup ({error}). Pass a file that `manage.py "
            "backup` wrote."
        ) from error


def unpack(tar: tarfile.TarFile, manifest: Manifest, draft: Path) -> None:
    """Extract and verify every file. BackupFault if one differs from the backup's."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    for member in tar:
        is_file = member.isreg() or member.islnk()
        if not is_file or member.name not in {*manifest.sums, MANIFEST}:
            raise BackupFault(
                f"{tar.name!s} holds {member.name}, which no backup has. Nothing was "
                "restored. Pass a file that `manage.py backup` wrote."
            )
    tar.extractall(draft, filter="data")
    parts = {file.relative_to(draft).as_posix(): file for file in draft.rglob("*")}
    for name, digest in manifest.sums.items():
        if name not in parts or _digest(parts[name]) != digest:
            raise BackupFault(
                f"{name} is missing or damaged in {tar.name!s}. Nothing was restored. "
                "Use another copy of the file."
            )


def read_manifest(tar: tarfile.TarFile) -> Manifest:
    try:
        file = tar.extractfile(MANIFEST)
    except KeyError:
        raise BackupFault(
            f"{tar.name!s} has no {MANIFEST}, so it is not a backup or is incomplete. "
            "Pass a complete file that `manage.py backup` wrote."
        ) from None
    try:
        return Manifest.model_validate_json(file.read() if file else b"")
    except ValidationError as error:
        raise BackupFault(
            f"This version of Cohort cannot read {MANIFEST}: "
            f"{error.errors()[0]['msg']}. Restore with the version that made the "
            "backup."
        ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_empty(data: Path) -> None:
    """BackupFault where a person, a run or a file would be mixed with others."""
    # List tables that contain more than migrations create.
    names = sorted(
        {*_list_tables()}
        - {"django_migrations", "django_content_type", "auth_permission"}
    )
    some = sql.SQL("SELECT EXISTS (SELECT FROM {})")
    tables = [
        name for name in names if fetch_all(some.format(sql.Identifier(name)))[0][0]
    ]
    if tables:
        raise BackupFault(
            f"The database is not empty: {_first_three(tables)} have rows. Restore "
            "into an empty one: set DATABASE_URL to an empty database, or unset "
            "it and use an empty COHORT_DATA."
        )
    # The first command of any kind creates the key.
    files = [name for name, _ in islice(list_files(data, with_checkpoints=True), 4)]
    files = [name for name in files if name != KEY_FILE]
    if files:
        raise BackupFault(
            f"The data folder {data} is not empty: it contains "
            f"{', '.join(files[:3])}. Set COHORT_DATA to a new folder."
        )


def _first_three(names: list[str]) -> str:
    first = ", ".join(names[:3])
    return f"{first} and {len(names) - 3} more" if names[3:] else first


# The database.


def _run(program: str, *arguments: str, stdout: IO[bytes] | None = None) -> None:
    """Run it on the tables of Cohort's database. BackupFault has what it says."""
    path = _find_program(program)
    schema = f"--schema={fetch_all('SELECT current_schema()')[0][0]}"
    assert connection.connection, "open"
    info = connection.connection.info
    # Raw text, as fast as the disk; the tables may belong to another role there.
    options = ["--format=custom", "--no-owner", "--no-privileges", schema]
    options += ["--compress=0"] if program == "pg_dump" else []
    done = subprocess.run(
        [path, f"--dbname={info.dsn}", *options, *arguments],
        env={**os.environ, "PGPASSWORD": info.password},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        # What it quotes may be a row with a secret.
        lines = [
            line
            for line in done.stderr.splitlines()
            if not line.startswith(("CONTEXT:", "DETAIL:"))
        ]
        raise BackupFault(f"{program} failed: {' '.join(lines)[-1_000:]}")


def _find_program(name: str) -> str:
    """Find pg_dump or pg_restore on the path or in the embedded PostgreSQL."""
    server = _server_version()
    paths = [shutil.which(name)]
    with suppress(LocalFault):
        paths.append(find_program(name))
    for path in filter(None, paths):
        text = subprocess.check_output([path, "--version"], text=True)
        version = int(re.findall(r"\d+", text)[0])
        if version == server or version > server >= FIRST_WITH_TIMEOUT:
            return path
    raise BackupFault(
        f"The server is PostgreSQL {server}, and this machine has no {name} for it. "
        f"Install postgresql-client-{server}."
    )


def _server_version() -> int:
    """Return the major version: 18."""
    return int(fetch_all("SHOW server_version_num")[0][0]) // 10_000


def _applied_migrations() -> list[tuple[str, str]]:
    return sorted(MigrationRecorder(connection).applied_migrations())


def _list_tables() -> list[str]:
    """List those of Cohort's schema; others may be visible too."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    return [name for (name,) in fetch_all(query)]


@contextmanager
def database(*, held: bool) -> Iterator[None]:
    """Start Cohort's own database for one command, unless one runs.

    `held`: lock the data folder. LocalFault if another process uses it.
    """
    data: Path = settings.COHORT_DATA
    if not settings.DATABASE_IS_EMBEDDED or (not held and _answers()):
        yield
        return
    private_folder(data)
    with ExitStack() as stack:
        stack.enter_context(hold_folder(data, address="backup or restore"))
        postgres = embedded_postgres(data)
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(connection.close)
        yield


def _answers() -> bool:
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True


# Backups in a folder, of which the newest are kept.


def list_backups(folder: Path) -> list[Path]:
    """Oldest first; other files in the folder are ignored."""
    if not folder.is_dir():
        raise BackupFault(f"Folder {folder} not found. Create it first.")
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    return sorted(paths, key=_made_at)


def name_backup(folder: Path, now: datetime) -> Path:
    return folder / f"cohort-{now.astimezone(UTC):{TIME_FORMAT}}.tar"


def delete_old_backups(folder: Path, *, keep: int) -> list[Path]:
    """Delete all but the newest `keep`; return the deleted ones."""
    old = list_backups(folder)[:-keep]
    for path in old:
        path.unlink()
    return old


def delete_abandoned_parts(folder: Path, now: datetime) -> None:
    """Incomplete file of a killed backup."""
    for path in folder.glob("cohort-*.tar.partial"):
        written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        if now - written_at > ABANDONED:
            path.unlink()


def find_wait(folder: Path, *, every: timedelta, now: datetime) -> timedelta:
    """Return the time until the next is due: none if there is none, or an old one."""
    backups = list_backups(folder)
    if not backups:
        return timedelta()
    # A file of the future would make no backup for as long.
    age = max(now - _made_at(backups[-1]), timedelta())
    return max(every - age, timedelta())


def _made_at(path: Path) -> datetime:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return datetime.strptime(match[1], TIME_FORMAT).replace(tzinfo=UTC)
