"""The backup file: a tar file with a manifest, whose last part has all SHA-256 sums.

It is read from front to end, as it was written; an incomplete file has no last part.
Files with several names, such as kept checkpoints, are written once.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from pydantic import AwareDatetime, BaseModel, ConfigDict

from dashboard.operations.backups.tables import read_server_version

SUMS = "SHA256SUMS"
FORMAT = 1


class BackupFault(Exception):
    """Why nothing was backed up or restored, and what to do."""


class Writer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._sums: dict[str, str] = {}
        self._links: dict[tuple[int, int], str] = {}
        self.num_bytes = 0

    def add_text(self, name: str, text: str) -> None:
        content = text.encode()
        self._add(tarfile.TarInfo(name), io.BytesIO(content), len(content))

    def add_stream(self, name: str, file: IO[bytes]) -> None:
        """All that is in a file without a name."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._add(tarfile.TarInfo(name), file, size)

    def add_file(self, name: str, path: Path) -> bool:
        """False if it was deleted in between: runs continue during a backup."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            found = os.fstat(file.fileno())
            info = tarfile.TarInfo(name)
            info.mode = found.st_mode & 0o777
            info.mtime = int(found.st_mtime)
            inode = (found.st_dev, found.st_ino)
            if found.st_nlink > 1 and inode in self._links:
                self._add_link(info, self._links[inode])
            else:
                self._add(info, file, found.st_size)
                self._links[inode] = name
        return True

    def add_sums(self) -> None:
        lines = (f"{digest}  {name}\n" for name, digest in self._sums.items())
        self.add_text(SUMS, "".join(lines))

    def _add(self, info: tarfile.TarInfo, file: IO[bytes], size: int) -> None:
        info.size = size  # a log may grow in between
        reader = _Summing(file)
        self._tar.addfile(info, reader)
        self._sums[info.name] = reader.digest.hexdigest()
        self.num_bytes += size

    def _add_link(self, info: tarfile.TarInfo, first: str) -> None:
        info.type, info.linkname = tarfile.LNKTYPE, first
        self._tar.addfile(info)
        self._sums[info.name] = self._sums[first]


class _Summing(io.RawIOBase):
    """A file that is read, with the SHA-256 of what was."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """A new file, readable only by our user, that gets its name once it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                writer = Writer(tar)
                yield writer
                writer.add_sums()
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, mode="r") as tar:
            yield tar
    except (tarfile.ReadError, EOFError) as error:
        raise BackupFault(
            f"{path} is not a valid backup ({error}). Pass a file that `manage.py "
            "backup` wrote."
        ) from error


def read_text(tar: tarfile.TarFile, name: str) -> str:
    try:
        file = tar.extractfile(name)
    except KeyError:
        raise BackupFault(
            f"{tar.name!s} has no {name}, so it is not a backup or is incomplete. "
            "Pass a complete file that `manage.py backup` wrote."
        ) from None
    assert file is not None
    return file.read().decode()


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Every file, verified. BackupFault if one differs from what was written."""
    sums = dict(_read_sums(read_text(tar, SUMS)))
    tar.extractall(folder, filter="data")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    for name, digest in sums.items():
        if name not in found or _digest(folder / name) != digest:
            raise BackupFault(
                f"{name} is missing or damaged in {tar.name!s}. Nothing was "
                "restored. Use another copy of the file."
            )


def _read_sums(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n")[:-1]:
        digest, name = line.split("  ", 1)
        yield name, digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The manifest, and whether this server can restore it.


class TableEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    columns: list[str]
    num_rows: int


class Manifest(BaseModel):
    """`backup.json`, the first file of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    made_at: AwareDatetime
    postgres: int  # major version
    migrations: list[tuple[str, str]]
    tables: list[TableEntry]
    sequences: dict[str, int]
    has_checkpoints: bool
    key_is_inside: bool  # False: COHORT_SECRET_KEY came from the environment

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


def applied_migrations() -> list[tuple[str, str]]:
    return sorted(MigrationRecorder(connection).applied_migrations())


def check_versions(manifest: Manifest) -> None:
    """BackupFault if it comes from a newer Cohort or PostgreSQL."""
    if manifest.format != FORMAT:
        raise BackupFault(
            f"The backup has format {manifest.format}; this version of Cohort "
            f"reads {FORMAT}. Restore it with the version that made it."
        )
    known = MigrationExecutor(connection).loader.disk_migrations or {}
    unknown = [".".join(one) for one in manifest.migrations if one not in known]
    if unknown:
        raise BackupFault(
            f"A newer version of Cohort made this backup: {first_three(unknown)} "
            "are unknown. Install that version, then restore."
        )
    here = read_server_version()
    if manifest.postgres > here:
        raise BackupFault(
            f"The backup is from PostgreSQL {manifest.postgres}; this server is "
            f"{here}. Restore into {manifest.postgres} or newer."
        )


def migrate_to(migrations: Iterable[tuple[str, str]]) -> None:
    """Make the tables that the backup's rows were in, in a database that has none."""
    wanted = {(app, name) for app, name in migrations}
    executor = MigrationExecutor(connection)
    executor.recorder.ensure_schema()
    whole = executor.migration_plan(
        executor.loader.graph.leaf_nodes(), clean_start=True
    )
    plan = [(m, back) for m, back in whole if (m.app_label, m.name) in wanted]
    executor.migrate([], plan=plan)


def first_three(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if names[3:] else shown
