from __future__ import annotations

from pathlib import Path

from dashboard.local.data_folder import embedded_addresses
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
