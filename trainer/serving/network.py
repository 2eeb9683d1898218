"""Addresses, tokens and connections of model servers."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

BINARY = "application/octet-stream"


def is_private(host: str) -> bool:
    """Whether each address of a host is on this machine or on a private network.

    Link-local addresses are not: clouds answer there with a machine's credentials.

    Raises:
        ValueError: the name has no address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"{host} has no address: {error.strerror}.") from None
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    return all(
        each.is_private and not each.is_link_local and not each.is_unspecified
        for each in addresses
    )


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


_SHORTEST = 16


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        ValueError: there is none, or it is no token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(_complaint(path)) from None
    if len(token) < _SHORTEST or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(_complaint(path))
    return token


def read_or_make_token(path: Path) -> str:
    """The token in a file, which is made, for its owner alone, where there is none."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be written: {error.strerror}."
        ) from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _complaint(path: Path) -> str:
    return (
        f"The token file {path} must hold one word of at least {_SHORTEST} plain "
        "letters, digits or signs. Delete it and start the server, which "
        "makes a new one."
    )


_Result = TypeVar("_Result")


def in_parallel(acts: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """What each gives, in order; all have ended before the first error is raised."""
    if len(acts) < 2:
        return [act() for act in acts]
    with ThreadPoolExecutor(len(acts), thread_name_prefix="server") as threads:
        futures = [threads.submit(act) for act in acts]
    return [future.result() for future in futures]
