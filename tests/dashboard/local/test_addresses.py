import errno
import os
from pathlib import Path

import pytest

from dashboard.local.data_folder import LocalFault, close_folder, embedded_addresses
from dashboard.project.database import parse_database_url


def test_sockets_lie_in_the_data_folder():
    found = embedded_addresses(Path("/srv/cohort"))

    assert found.postgres_folder == Path("/srv/cohort/sockets/postgres")
    assert found.redis_url == "unix:///srv/cohort/sockets/redis/redis.sock"


def test_a_deep_data_folder_gets_a_short_socket_path():
    deep = Path("/srv") / ("d" * 120)
    deeper = Path("/srv") / ("d" * 121)

    found = embedded_addresses(deep)

    assert len(str(found.postgres_folder / ".s.PGSQL.5432.lock")) < 108
    assert len(str(found.redis_socket)) < 108
    assert found == embedded_addresses(deep)
    assert found != embedded_addresses(deeper)


def test_django_reads_the_embedded_address():
    url = embedded_addresses(Path("/srv/cohort")).database_url

    found = parse_database_url(url)

    assert found["HOST"] == "/srv/cohort/sockets/postgres"
    assert (found["USER"], found["NAME"]) == ("cohort", "cohort")


def test_up_closes_the_data_folder_to_other_users(tmp_path):
    (tmp_path / "uploads").mkdir(mode=0o755)
    (tmp_path / "secret-key").write_text("x")
    (tmp_path / "secret-key").chmod(0o644)
    elsewhere = tmp_path / "uploads" / "rows.jsonl"
    elsewhere.write_text("x")
    elsewhere.chmod(0o644)
    (tmp_path / "link").symlink_to(elsewhere)

    close_folder(tmp_path)

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"uploads": 0o700, "secret-key": 0o600, "link": 0o644}


def test_only_own_entries_that_others_can_read_are_closed(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "open").mkdir(mode=0o755)

    def refuse(path: Path, _mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(Path, "chmod", refuse)

    with pytest.raises(LocalFault, match="open"):
        close_folder(tmp_path)

    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)  # all are another's: lost+found
    close_folder(tmp_path)


def test_an_entry_that_vanishes_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "uploads").mkdir(mode=0o755)
    gone = tmp_path / "postgres.pid"
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([gone, tmp_path / "uploads"]))

    close_folder(tmp_path)

    assert (tmp_path / "uploads").stat().st_mode & 0o777 == 0o700
