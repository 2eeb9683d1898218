"""A connection to an address that was looked at first, with a deadline.

The standard library's own client: it follows no redirects and takes no proxy from the
environment, and its connections can be made to addresses of our choice.
"""

from __future__ import annotations

import io
import math
import socket
import ssl
import time
from collections.abc import Callable
from functools import cache
from http.client import HTTPConnection
from typing import Any

from trainer.internet.address import Gate, Target, resolve

# How often a reader that waits for a byte asks whether it is still to.
_TICK_SECONDS = 0.25


class Connection(HTTPConnection):
    """To one of a target's addresses, with one deadline for all of an exchange.

    `on_wait` is called while an answer keeps it waiting; what it raises ends that.
    """

    def __init__(
        self, target: Target, gate: Gate, *, on_wait: Callable[[], None] | None = None
    ) -> None:
        super().__init__(target.host, target.port)
        self.deadline = math.inf
        self.on_wait = on_wait
        self._target = target
        self._gate = gate
        if target.scheme == "https":
            self.default_port = 443  # which the Host header then leaves out

    def connect(self) -> None:
        found = resolve(self._target, self._gate)
        plain = _connect(found, self)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._target.scheme == "https":
            try:
                secure = _tls().wrap_socket(plain, server_hostname=self._target.host)
            except BaseException:
                plain.close()
                raise
            self.sock = _Timed(secure, self)
        else:
            self.sock = _Timed(plain, self)

    def abort(self) -> None:
        """Let the thread that waits for it learn that it is gone."""
        if isinstance(self.sock, _Timed):
            self.sock.abort()

    def seconds_left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Timed:
    """A socket whose every operation has what is left until the deadline.

    A socket's own time limit begins anew with each part that it is sent, so a server
    that sends a byte a second would never come to it.
    """

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        self._sock = sock
        self._connection = connection

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._connection.seconds_left())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        raw = self._sock.makefile("rb", buffering=0)
        return io.BufferedReader(_TimedFile(raw, self))

    def close(self) -> None:
        self._sock.close()

    def abort(self) -> None:
        try:
            # not TLS's own, which would take the connection apart under its reader
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def receive_into(self, buffer: Any) -> int:
        connection = self._connection
        while True:
            left = connection.seconds_left()
            if connection.on_wait is None:
                self._sock.settimeout(left)
                return self._sock.recv_into(buffer)
            connection.on_wait()
            self._sock.settimeout(min(left, _TICK_SECONDS))
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                continue


class _TimedFile(io.RawIOBase):
    """Reads the socket itself: its own file takes one timeout for the end."""

    def __init__(self, raw: io.RawIOBase, timed: _Timed) -> None:
        self._raw = raw  # keeps the socket open until the answer is read
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.receive_into(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _connect(found: list[Any], connection: Connection) -> socket.socket:
    """To the first of some addresses that takes a connection."""
    last: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(connection.seconds_left())
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise last


@cache
def _tls() -> ssl.SSLContext:
    # Reading the system's certificates takes 20 ms.
    return ssl.create_default_context()
