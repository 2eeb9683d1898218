import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dashboard.local import postgres as embedding
from dashboard.local.data_folder import LocalFault
from dashboard.local.postgres import EmbeddedPostgres


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders are too deep for a unix socket.
    with tempfile.TemporaryDirectory(prefix="cohort-pg-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A cluster that was made and stopped: to make one takes a second."""
    with tempfile.TemporaryDirectory(prefix="cohort-pg-", dir="/tmp") as name:
        server = make_server(Path(name))
        server.start()
        server.stop()
        yield server.folder


@pytest.fixture
def postgres(folder, made) -> Iterator[EmbeddedPostgres]:
    server = make_server(folder)
    # With its owner: as root PostgreSQL has a user of its own.
    subprocess.run(["/bin/cp", "-a", made, server.folder], check=True)
    yield server
    server.stop()


def make_server(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        folder=folder / "postgres",
        socket_folder=folder / "sockets",
        log=folder / "postgres.log",
    )


def connect(
    server: EmbeddedPostgres, user: str = "cohort", dbname: str = "cohort"
) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host=str(server.socket_folder), user=user, dbname=dbname, autocommit=True
    )


def test_the_private_socket_accepts_only_a_role_without_superuser(postgres):
    postgres.start()

    with connect(postgres) as connection:
        (addresses,) = connection.execute("SHOW listen_addresses").fetchone() or ("?",)
        role = connection.execute(
            "SELECT current_user, rolsuper, rolcreatedb, rolcreaterole "
            "FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        owner = connection.execute(
            "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'cohort'"
        ).fetchone()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
    with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf"):
        connect(postgres, user="postgres", dbname="postgres")
    assert role == ("cohort", False, False, False)
    assert owner == ("cohort",)
    assert addresses == ""
    assert stat.S_IMODE(postgres.socket_folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_data_is_kept_over_a_restart(postgres):
    postgres.start()
    with connect(postgres) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")

    postgres.stop()
    postgres.start()

    with connect(postgres) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)


@pytest.mark.slow
def test_a_crash_loses_nothing_that_was_committed(postgres):
    postgres.start()
    with connect(postgres) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 500) AS n")
    assert postgres.child is not None
    os.kill(postgres.child.pid, signal.SIGQUIT)  # ends at once, without a checkpoint
    postgres.child.wait()

    postgres.start()

    with connect(postgres) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (500,)


def test_a_server_left_over_by_a_killed_start_is_taken_over(folder, postgres):
    postgres.start()
    with connect(postgres) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")

    second = make_server(folder)
    second.start()

    assert postgres.child is not None
    assert postgres.child.wait(10) == 0
    with connect(second) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
    second.stop()


@pytest.mark.slow
def test_a_half_made_cluster_is_made_again(folder):
    half_made = folder / "postgres.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    server = make_server(folder)

    server.start()

    with connect(server) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()


def test_a_cluster_that_cannot_start_shows_its_log(postgres):
    (postgres.folder / "postgresql.conf").write_text("no_such_setting = 1\n")

    with pytest.raises(LocalFault, match="no_such_setting"):
        postgres.start()


@pytest.mark.slow
def test_a_recovering_server_is_awaited(folder, monkeypatch):
    first = make_server(folder)
    first.start()
    first.stop()
    monkeypatch.setattr(embedding, "START_SECONDS", 1.0)
    monkeypatch.setattr(embedding, "REPORT_SECONDS", 0.4)
    # A standby recovers until it is promoted, and takes no connections before.
    (first.folder / "standby.signal").touch()
    server = make_server(folder)
    server.settings["hot_standby"] = "off"
    reported: list[str] = []

    def promote_in_the_end(text: str) -> None:
        reported.append(text)
        if len(reported) == 4:
            (server.folder / "promote").touch()
            assert server.child is not None
            server.child.send_signal(signal.SIGUSR1)

    try:
        server.start(report=promote_in_the_end)

        with connect(server) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()
    assert "is recovering" in reported[0]
    assert str(server.log) in reported[0]
