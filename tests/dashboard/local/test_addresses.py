from __future__ import annotations

from pathlib import Path

from dashboard.local.data_folder import close_folder, embedded_addresses
from dashboard.project.database import parse_database_url


def test_sockets_lie_in_the_data_folder() -> None:
    found = embedded_addresses(Path("/srv/cohort"))

    assert found.postgres_folder == Path("/srv/cohort/sockets/postgres")
    assert found.redis_url == "unix:///srv/cohort/sockets/redis/redis.sock"


def test_a_deep_data_folder_gets_a_short_socket_path() -> None:
    deep = Path("/srv") / ("d" * 120)
    deeper = Path("/srv") / ("d" * 121)

    found = embedded_addresses(deep)

    assert len(str(found.postgres_folder / ".s.PGSQL.5432.lock")) < 108
    assert len(str(found.redis_socket)) < 108
    assert found == embedded_addresses(deep)
    assert found != embedded_addresses(deeper)


def test_django_reads_the_embedded_address() -> None:
    url = embedded_addresses(Path("/srv/cohort")).database_url

    found = parse_database_url(url)

    assert found["HOST"] == "/srv/cohort/sockets/postgres"
    assert (found["USER"], found["NAME"]) == ("cohort", "cohort")


def test_what_others_can_read_in_the_data_folder_is_closed(tmp_path: Path) -> None:
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
