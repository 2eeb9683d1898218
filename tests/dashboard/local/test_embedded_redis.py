import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.local.redis_server import EmbeddedRedis


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with tempfile.TemporaryDirectory(prefix="cohort-redis-", dir="/tmp") as name:
        folder = Path(name)
        server = EmbeddedRedis(socket=folder / "r" / "redis.sock", log=folder / "log")
        yield server
        server.stop()


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket))


def test_it_listens_on_a_private_socket_only(server):
    server.start()

    with client(server) as connection:
        assert connection.config_get("port") == {"port": "0"}
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700


def test_it_runs_scripts_with_the_fixes_of_valkey_9_1_2(server):
    server.start()

    with client(server) as connection:
        about = connection.info("server")
        assert connection.eval("return 1 + 1", 0) == 2
    assert about["server_name"] == "valkey"
    assert tuple(map(int, about["valkey_version"].split("."))) >= (9, 1, 2)


def test_it_starts_again_after_it_was_killed(server):
    server.start()
    assert server.child is not None
    server.child.kill()
    server.child.wait()

    server.start()

    with client(server) as connection:
        assert connection.ping()


def test_a_server_left_over_by_a_killed_start_is_ended(server):
    server.start()
    first = server.child
    assert first is not None

    server.start()

    assert first.wait(10) == 0
    with client(server) as connection:
        assert connection.ping()


@pytest.mark.slow
def test_it_starts_again_although_an_old_server_hangs(server):
    server.start()
    first = server.child
    assert first is not None
    first.send_signal(signal.SIGSTOP)

    try:
        assert not server.is_ready()
        server.start()

        with client(server) as connection:
            assert connection.ping()
    finally:
        first.kill()
        first.wait()
