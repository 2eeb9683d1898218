"""Backups one after the other into a folder, of which the newest are kept."""

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from dashboard.operations.backups import (
    BackupFault,
    find_wait,
    list_backups,
    name_backup,
)
from tests.faults.workers import wait_for
from tests.fixtures_app import test_database_url

ROOT = Path(__file__).parents[3]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path, settings) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    settings.DATABASE_IS_EMBEDDED = False
    path = tmp_path / "backups"
    path.mkdir()
    return path


@pytest.mark.django_db(transaction=True)
def test_the_newest_are_kept_and_other_files_are_ignored(folder):
    old = [name_backup(folder, NOON + timedelta(days=day)) for day in range(3)]
    others = [folder / "cohort-monday.tar", folder / "notes.txt"]
    part = folder / "cohort-20250101T000000Z.tar.partial"
    for path in (*old, *others, part):
        path.write_text("")
    os.utime(part, (0, 0))

    call_command("backup", "--into", str(folder), "--keep", "2")

    newest = list_backups(folder)
    assert newest[0] == old[2]
    assert len(newest) == 2
    assert tarfile.is_tarfile(newest[1])
    assert all(path.exists() for path in others)
    assert not part.exists()


@pytest.mark.django_db(transaction=True)
def test_a_backup_that_failed_deletes_none(folder, settings):
    old = [name_backup(folder, NOON + timedelta(days=day)) for day in range(3)]
    for path in old:
        path.write_text("")
    settings.COHORT_DATA = folder.parent  # the folder would be part of itself

    with pytest.raises(CommandError, match="data folder"):
        call_command("backup", "--into", str(folder), "--keep", "1")

    assert list_backups(folder) == old


def test_invalid_arguments_are_reported(folder):
    for arguments, message in (
        (["a.tar", "--keep", "3"], "--into FOLDER"),
        (["--into", "/nowhere/at-all"], "/nowhere/at-all"),
        (["--into", "/tmp", "--keep", "0"], "10,000; got 0"),
        (["--into", "/tmp", "--every", "soon"], "10,000; got soon"),
        ([], "file --into"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("backup", *arguments)


def test_the_next_is_due_so_long_after_the_last(folder):
    def wait(now: datetime) -> timedelta:
        return find_wait(folder, every=timedelta(hours=24), now=now)

    assert wait(NOON) == timedelta()
    name_backup(folder, NOON).touch()

    assert wait(NOON + timedelta(hours=1)) == timedelta(hours=23)
    assert wait(NOON + timedelta(hours=30)) == timedelta()
    assert wait(NOON - timedelta(days=300)) == timedelta(hours=24)  # a clock set back
    with pytest.raises(BackupFault, match="not found"):
        list_backups(folder / "none")


@pytest.fixture
def schedule(folder) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "COHORT_DATA": str(folder.parent / "data")}
    env["DATABASE_URL"] = test_database_url()
    command = [sys.executable, "manage.py", "backup", "--into", str(folder)]
    child = subprocess.Popen(
        [*command, "--every", "24", "--keep", "3"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield child
    child.kill()
    child.wait()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_it_runs_until_it_is_stopped(folder, schedule):
    wait_for(lambda: list_backups(folder), what="the first backup")
    assert schedule.poll() is None

    schedule.send_signal(signal.SIGTERM)
    message = schedule.communicate(timeout=30)[1]

    assert (schedule.returncode, "Traceback" in message) == (0, False)
    assert len(list_backups(folder)) == len(list(folder.iterdir())) == 1
