"""What a backup holds makes an empty server into the same server again."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from dashboard.accounts.models import AuditEntry, User
from dashboard.accounts.services import record
from dashboard.alerts.models import Channel
from dashboard.operations import backups
from dashboard.operations.backups import DUMP, MANIFEST, Manifest
from dashboard.operations.management.commands import restore
from dashboard.project.first_migrations import known_migrations
from dashboard.runs.models import Run, RunState
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.environment import run_here
from tests.fixtures_app import test_database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def data(tmp_path, settings) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    settings.DATABASE_IS_EMBEDDED = False
    return tmp_path / "data"


@pytest.fixture
def full_server(data, team, alice) -> Run:
    """Rows with odd texts, and files as the trainer and a person leave them."""
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.25, None, 0.75]})
    make_group(run, rewards=(0.0, 1.0), prompt='\\N\t"\r\n\\.\nNULL ␀ ünï 😀')
    record(team, alice, "run.renamed", run, name="tab\there")
    put(data / "secret-key", "of the server", mode=0o600)
    put(data / f"runs/{run.pk}/epochs/1/events.jsonl", "{}\n")
    weights = data / f"runs/{run.pk}/checkpoints/step-3/model.safetensors"
    put(weights, "weights" * 1000)
    kept = data / f"runs/{run.pk}/kept/step-3/model.safetensors"
    kept.parent.mkdir(parents=True)
    os.link(weights, kept)
    put(data / "models/1/1/config.json", "{}")
    put(data / "logs/web.log", "not kept")
    put(data / "postgres/PG_VERSION", "18")
    return run


def put(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture(params=["own servers", "a database of its own"])
def another_server(tmp_path, request) -> Iterator[Callable[..., str]]:
    """Runs a command of manage.py on an empty database and data folder."""
    env = {**os.environ, "COHORT_DATA": str(tmp_path / "another")}
    if request.param == "own servers":
        del env["DATABASE_URL"]
    else:
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE another_server")
        ours, name = test_database_url(), str(connection.settings_dict["NAME"])
        env["DATABASE_URL"] = ours.replace(f"/{name}", "/another_server")

    def manage(*arguments: str | Path, code: int = 0) -> str:
        done = run_here(sys.executable, "manage.py", *map(str, arguments), env=env)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    yield manage
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS another_server")


def read_part(path: Path, name: str) -> bytes:
    with tarfile.open(path) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def sums_of(path: Path) -> dict[str, str]:
    sums: dict[str, str] = json.loads(read_part(path, MANIFEST))["sums"]
    return sums


def rows_of(path: Path, tmp_path: Path) -> dict[str, list[str]]:
    """The rows of each table, as COPY writes them."""
    dump = tmp_path / DUMP
    dump.write_bytes(read_part(path, DUMP))
    text = subprocess.check_output(
        [backups._find_program("pg_restore"), "--data-only", "--file=-", dump],
        text=True,
    )
    parts = re.findall(r"^COPY public\.(\w+) .*?;\n(.*?)^\\\.$", text, re.M | re.S)
    return {name: rows.splitlines() for name, rows in parts}


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """The same tar file with other contents; None leaves a part out."""
    fresh = path.with_suffix(".fresh")
    with tarfile.open(path) as old, tarfile.open(fresh, "w") as new:
        for member in old:
            file = old.extractfile(member)
            content = change(member.name, file.read() if file else b"")
            if content is not None:
                info = tarfile.TarInfo(member.name)
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))
    fresh.rename(path)


@pytest.mark.slow
def test_an_empty_server_becomes_the_same_server(full_server, tmp_path, another_server):
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"

    call_command("backup", str(first))
    another_server("restore", first, "--take-over")
    another_server("backup", second)
    refused = another_server("restore", first, code=1)

    before, after = sums_of(first), sums_of(second)
    assert before.pop(DUMP) != after.pop(DUMP)  # another time
    assert before == after
    assert rows_of(first, tmp_path) == rows_of(second, tmp_path)
    assert len(rows_of(first, tmp_path)["samples_groupcompletions"]) == 1
    assert sum(name.startswith("data/") for name in before) == 5
    assert "not empty" in refused
    folder = tmp_path / "another"
    assert (folder / "secret-key").read_text() == "of the server"
    assert (folder / "secret-key").stat().st_mode & 0o777 == 0o600
    copies = list((folder / f"runs/{full_server.pk}").rglob("model.safetensors"))
    assert len({path.stat().st_ino for path in copies}) == 1
    assert len(copies) == 2
    assert not (folder / ".restoring").exists()


@pytest.mark.slow
@pytest.mark.parametrize("another_server", ["a database of its own"], indirect=True)
def test_a_restored_server_adds_new_ids_and_starts_and_sends_nothing(
    full_server, tmp_path, another_server
):
    Run.objects.update(state=RunState.QUEUED, finished_at=None)
    channel = {
        "kind": "webhook",
        "address": "https://example.com",
        "team": full_server.team,
    }
    Channel.objects.create(**channel)
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True)[0]
    file = tmp_path / "backup.tar"
    call_command("backup", str(file), "--without-checkpoints")

    message = another_server("restore", file)
    code = (
        "from dashboard.accounts.models import *\n"
        "from dashboard.accounts.services import record\n"
        "team = Team.objects.get(slug='alpha')\n"
        "print('number', record(team, None, 'team.looked', team).pk)\n"
        "from dashboard.alerts.models import Channel\n"
        "from dashboard.runs.queue.order import STARTABLE\n"
        "from dashboard.runs.models import Run\n"
        "print('held', Run.objects.filter(on_hold=True, state='queued').count())\n"
        "print('startable', Run.objects.filter(STARTABLE).count())\n"
        "print('enabled', Channel.objects.filter(is_enabled=True).count())"
    )
    added = another_server("shell", "--no-imports", "-c", code)

    assert int(added.split("number ")[1].split()[0]) > newest
    assert "no checkpoints" in message
    assert "--take-over" in message
    for fact in ("held 1", "startable 0", "enabled 0"):
        assert fact in added
    assert not list((tmp_path / "another").rglob("*.safetensors"))
    assert list((tmp_path / "another").rglob("events.jsonl"))


def test_a_backup_is_private_and_never_overwritten(full_server, tmp_path, data):
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))

    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("backup*")] == ["backup.tar"]
    with pytest.raises(CommandError, match="already exists"):
        call_command("backup", str(file))
    with pytest.raises(CommandError, match="data folder"):
        call_command("backup", str(data / "backup.tar"))


def test_sessions_and_derived_files_are_left_out(full_server, tmp_path, alice_client):
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))

    names = set(sums_of(file))
    rows = rows_of(file, tmp_path)
    assert len(rows["accounts_user"]) == User.objects.count()
    assert "django_session" not in rows
    assert "data/logs/web.log" not in names
    assert not any(name.startswith("data/postgres") for name in names)


def test_a_server_that_is_not_empty_is_refused(full_server, tmp_path):
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))
    num_runs = Run.objects.count()

    with pytest.raises(CommandError, match="not empty: accounts_audit"):
        call_command("restore", str(file))

    assert Run.objects.count() == num_runs
    call_command("flush", "--no-input", verbosity=0)
    with pytest.raises(CommandError, match="contains models"):
        call_command("restore", str(file))


def test_a_damaged_file_restores_nothing(full_server, tmp_path, settings):
    whole, file = tmp_path / "whole.tar", tmp_path / "backup.tar"
    call_command("backup", str(whole))
    call_command("flush", "--no-input", verbosity=0)
    settings.COHORT_DATA = tmp_path / "fresh"

    for part, content, message in (
        (DUMP, b"1\tEvil\n", DUMP),
        (MANIFEST, None, "incomplete"),
        (MANIFEST, b"{}", "cannot read backup.json"),
    ):
        damaged = {part: content}
        shutil.copy(whole, file)
        rewrite(file, lambda name, old, damaged=damaged: damaged.get(name, old))
        with pytest.raises(CommandError, match=message):
            call_command("restore", str(file))

        assert not User.objects.exists()
        assert not list((tmp_path / "fresh").rglob("*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
def test_a_part_that_no_backup_has_restores_nothing(
    full_server, tmp_path, settings, kind
):
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))
    call_command("flush", "--no-input", verbosity=0)
    settings.COHORT_DATA = tmp_path / "fresh"
    added = tarfile.TarInfo("data/added")
    added.type, added.linkname = kind, "../etc"
    with tarfile.open(file, "a") as tar:
        tar.addfile(added)

    with pytest.raises(CommandError, match="data/added"):
        call_command("restore", str(file))

    assert not User.objects.exists()
    assert not list((tmp_path / "fresh").rglob("*"))


def test_a_backup_of_another_version_is_refused(full_server, tmp_path):
    whole, file = tmp_path / "whole.tar", tmp_path / "backup.tar"
    call_command("backup", str(whole))
    manifest = json.loads(read_part(whole, "backup.json"))

    for change, message in (
        ({"migrations": [["runs", "9999_of_tomorrow"]]}, "runs.9999_of"),
        ({"migrations": [["runs", "0001_initial"]]}, "runs.0002_.*d431cc46"),
        ({"postgres": 99}, "PostgreSQL 99"),
        ({"format": 1}, "cannot read backup.json"),
        ({"format": 3}, "cannot read backup.json"),
    ):
        other = {"backup.json": json.dumps({**manifest, **change}).encode()}
        shutil.copy(whole, file)
        rewrite(file, lambda name, old, other=other: other.get(name, old))
        with pytest.raises(CommandError, match=message):
            call_command("restore", str(file))


@pytest.mark.slow
@pytest.mark.parametrize("another_server", ["a database of its own"], indirect=True)
def test_a_backup_of_an_older_cohort_is_brought_up_to_date(
    full_server, tmp_path, another_server
):
    """Before the migrations were squashed, and without an app."""
    file = tmp_path / "backup.tar"
    squashed = [key for key, replaced in known_migrations().items() if replaced]
    call_command("migrate", "reports", "zero", verbosity=0)
    for key in squashed:
        MigrationRecorder(connection).record_unapplied(*key)
    try:
        call_command("backup", str(file))
    finally:
        call_command("migrate", verbosity=0)

    another_server("restore", file)
    shown = another_server("showmigrations", "reports", "runs")

    migrations = _migrations_of(file)
    assert not any(app == "reports" for app, _ in migrations)
    assert not {*squashed} & {*map(tuple, migrations)}
    assert shown.count("[X] 0001_") == 2
    assert "[ ]" not in shown
    assert "[-]" not in shown


def _migrations_of(path: Path) -> list[list[str]]:
    migrations: list[list[str]] = json.loads(read_part(path, MANIFEST))["migrations"]
    return migrations


@pytest.mark.slow
@pytest.mark.parametrize("another_server", ["a database of its own"], indirect=True)
def test_rows_that_cannot_be_restored_leave_no_file(
    full_server, tmp_path, another_server
):
    """A dump that is whole, but no dump."""
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))
    manifest = json.loads(read_part(file, MANIFEST))
    manifest["sums"][DUMP] = hashlib.sha256(b"PGDMP").hexdigest()
    changed = {MANIFEST: json.dumps(manifest).encode(), DUMP: b"PGDMP"}
    rewrite(file, lambda name, old: changed.get(name, old))

    message = another_server("restore", file, code=1)

    assert "pg_restore" in message
    names = [path.name for path in (tmp_path / "another").iterdir()]
    assert not {"runs", "models", ".restoring"} & {*names}
    assert "[ ]" not in another_server("showmigrations", "runs")


def test_a_server_newer_than_the_programs_is_refused(
    full_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(backups, "_server_version", lambda: 99)
    file = tmp_path / "backup.tar"

    with pytest.raises(CommandError, match="postgresql-client-99"):
        call_command("backup", str(file))

    assert not list(tmp_path.glob("backup*"))


def test_a_file_that_is_not_a_backup_is_refused(tmp_path, data):
    file = tmp_path / "notes.txt"
    file.write_text("no backup")

    with pytest.raises(CommandError, match="not a valid backup"):
        call_command("restore", str(file))
    with pytest.raises(CommandError, match="not found"):
        call_command("restore", str(tmp_path / "missing.tar"))


@pytest.mark.slow
def test_a_database_that_is_not_the_servers_makes_no_backup(tmp_path, another_server):
    """As a command without the server's environment reaches one."""
    message = another_server("backup", tmp_path / "backup.tar", code=1)

    is_own = f"embedded database in {tmp_path / 'another'}" in message
    assert is_own or "another_server at " in message
    assert "/etc/cohort/environment" in message
    assert not list(tmp_path.glob("backup.tar*"))


def test_a_backup_without_the_key_lists_the_consequences(
    data, team, tmp_path, monkeypatch
):
    file = tmp_path / "backup.tar"
    call_command("backup", str(file))
    manifest = Manifest.model_validate_json(read_part(file, "backup.json"))
    monkeypatch.setattr(restore, "restore_backup", lambda *_, **__: manifest)
    output = io.StringIO()

    call_command("restore", str(file), stdout=output)

    assert "secret key" in output.getvalue()
    assert "authenticator app" in output.getvalue()
