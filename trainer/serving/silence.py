"""Noticing that another host is gone, when nothing is said for hours."""

from __future__ import annotations

import socket

_IDLE_SECONDS, _PAUSE_SECONDS, _NUM_PROBES = 30, 10, 3


def notice_silence(connection: socket.socket) -> None:
    """Have the kernel ask whether the other end is still there, and give up in 60 s.

    A host that lost its power says nothing, and the kernel's own patience is two hours:
    so long a server would be held by a run that is gone, and a run wait for an answer.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # named so on Linux; elsewhere the kernel's own patience has to do
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PAUSE_SECONDS),
        ("TCP_KEEPCNT", _NUM_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
