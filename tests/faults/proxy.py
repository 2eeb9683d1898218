"""A proxy of PostgreSQL that counts statements and injects a fault at one."""

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

from django.db import connection

# By their first byte: https://www.postgresql.org/docs/18/protocol-message-formats.html
QUERY, SYNC = b"Q", b"S"  # each ends a request of the client
READY, COPY_IN = b"Z", b"G"  # each ends a response
KEY = b"K"
BLOCK = 65_536


class Strike(Enum):
    SIGTERM_BEFORE = "SIGTERM to the client, before the server hears the statement"
    SIGTERM_AFTER = "SIGTERM to the client, when the server has done it"
    SIGKILL_AFTER = "SIGKILL of the client, when the server has done it"
    TERMINATED_BEFORE = "pg_terminate_backend, before the server hears the statement"
    CUT_AFTER = "the server has done it, and the client never hears of it"

    @property
    def is_before(self) -> bool:
        return self in (Strike.SIGTERM_BEFORE, Strike.TERMINATED_BEFORE)

    @property
    def is_sigterm(self) -> bool:
        return self in (Strike.SIGTERM_BEFORE, Strike.SIGTERM_AFTER)


class Proxy:
    """A unix socket in `folder`; statements are those of all its connections."""

    def __init__(self, folder: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / ".s.PGSQL.5432"))
        self._listening.listen()
        self._at, self._strike = 0, Strike.CUT_AFTER
        self.num_statements = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, strike: Strike, *, at: int) -> None:
        """Strike at this statement, counted from now on."""
        self.num_statements = 0
        self._at, self._strike = at, strike

    def close(self) -> None:
        # Wakes the accepting thread; close() would not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            line = _Line(client, strike_at=self._count)
            line.start()

    def _count(self) -> Strike | None:
        """The fault to inject at the current statement."""
        self.num_statements += 1
        return self._strike if self.num_statements == self._at else None


class _Line:
    """One connection of a client, and ours to the server for it."""

    def __init__(
        self, client: socket.socket, *, strike_at: Callable[[], Strike | None]
    ) -> None:
        self._client = client
        self._server = _reach_server()
        self._strike_at = strike_at
        self._pending: Strike | None = None  # until the response has arrived
        self._backend = 0

    def start(self) -> None:
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        answers = threading.Thread(target=self._carry, args=(self._carry_answers,))
        with self._client, self._server:
            answers.start()
            self._carry(self._carry_questions)
            answers.join()

    def _carry(self, carry: Callable[[], None]) -> None:
        with suppress(OSError):
            carry()
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # which wakes the other thread

    def _carry_questions(self) -> None:
        start = _read_exactly(self._client, 4)
        (size,) = struct.unpack("!I", start)
        self._server.sendall(start + _read_exactly(self._client, size - 4))
        for kind, message in _messages(self._client):
            if kind in (QUERY, SYNC) and (strike := self._strike_at()):
                if strike.is_before:
                    self._perform(strike)
                else:
                    self._pending = strike
            self._server.sendall(message)

    def _carry_answers(self) -> None:
        for kind, message in _messages(self._server):
            if kind == KEY:
                (self._backend,) = struct.unpack("!I", message[5:9])
            if kind in (READY, COPY_IN) and self._pending:
                self._perform(self._pending)
                self._pending = None
            self._client.sendall(message)

    def _perform(self, strike: Strike) -> None:
        if strike is Strike.CUT_AFTER:
            raise ConnectionResetError
        if strike is Strike.TERMINATED_BEFORE:
            _terminate(self._backend)
        else:
            number = signal.SIGTERM if strike.is_sigterm else signal.SIGKILL
            os.kill(_peer_of(self._client), number)


def _messages(end: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    """Each with its kind, whole."""
    while True:
        head = _read_exactly(end, 5)
        (size,) = struct.unpack("!I", head[1:])
        yield head[:1], head + _read_exactly(end, size - 4)


def _read_exactly(end: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        block = end.recv(min(BLOCK, size - len(read)))
        if not block:
            raise ConnectionResetError
        read += block
    return read


def _peer_of(client: socket.socket) -> int:
    credentials = client.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _reach_server() -> socket.socket:
    at = connection.settings_dict
    port = int(at["PORT"] or 5432)
    if not at["HOST"].startswith("/"):
        return socket.create_connection((at["HOST"], port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{at['HOST']}/.s.PGSQL.{port}")
    return server


def _terminate(backend: int) -> None:
    """On a connection of this thread."""
    with connection.cursor() as cursor:
        # Returns once the backend has ended, or after a second.
        cursor.execute("SELECT pg_terminate_backend(%s, 1000)", [backend])
    connection.close()
