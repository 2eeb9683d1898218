"""The servers that the environment does not name: started and stopped together."""

from __future__ import annotations

from pathlib import Path

from dashboard.local.addresses import embedded_addresses
from dashboard.local.folders import private_folder
from dashboard.local.postgres import EmbeddedPostgres
from dashboard.local.redis_server import EmbeddedRedis


def embedded_postgres(data: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        folder=private_folder(data) / "postgres",
        socket_folder=embedded_addresses(data).postgres_folder,
        log=private_folder(data / "logs") / "postgres.log",
    )


def embedded_redis(data: Path) -> EmbeddedRedis:
    return EmbeddedRedis(
        socket=embedded_addresses(data).redis_socket,
        log=private_folder(data / "logs") / "redis.log",
    )
