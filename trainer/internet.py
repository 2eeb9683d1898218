"""Connections to addresses from users: only public ones and allowed hosts.

`Connection` connects to an address that was checked before, with a deadline. It is the
standard library's client: it follows no redirects, uses no proxy from the environment,
and can connect to a given address.
"""

from __future__ import annotations

import errno
import io
import math
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, IncompleteRead
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
# Clouds tell their machines secrets at addresses that pass for public ones by their
# number: Azure's, and Oracle's, which not every Python knows to be reserved. The last
# leads to any operator of a 6to4 tunnel.
_NOT_PUBLIC = tuple(
    IPv4Network(text) for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")
)
# What the internet's registries hand out (RFC 4291), but for what carries IPv4 inside
# (Teredo, 6to4) and what is for examples (RFC 9637, which no Python 3.11 knows).
_GLOBAL = IPv6Network("2000::/3")
_NOT_GLOBAL = tuple(
    IPv6Network(text) for text in ("2001::/32", "2002::/16", "3fff::/20")
)


class Refused(Exception):
    """No one is sent there; the text says why and what to do."""


@dataclass(frozen=True)
class Target:
    """A URL, taken apart.

    >>> Target("https", "api.example.com", 443, "/v1")
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def authority(self) -> str:
        """The host with its port, as allow-lists write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class HostAllowlist:
    """Hosts that may be called, and the wording of refusals.

    >>> HostAllowlist(action="A judge is called", variable="COHORT_JUDGE_HOSTS")
    """

    action: str
    variable: str  # of the environment, which lists the allowed hosts
    schemes: tuple[str, ...] = ("https",)  # towards public addresses
    # Hosts and ports that may be asked whatever their addresses and scheme.
    allowed: frozenset[tuple[str, int]] = frozenset()


def read_url(url: str) -> Target:
    """Return the parts of a base URL.

    Raises:
        ValueError: it is none, or has parts that a base URL has not.
    """
    parts, target = _read(url)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"The address of {target.host} contains a name, a query or a fragment. "
            "Give the base URL alone; put a key in the worker's environment."
        )
    return Target(target.scheme, target.host, target.port, target.path.rstrip("/"))


def read_link(url: str) -> Target:
    """Return the parts of a file's URL; its query belongs to the path.

    Raises:
        ValueError: it is none, or holds a name and a password.
    """
    parts, target = _read(url)
    if parts.username is not None:
        raise ValueError(
            f"The address of {target.host} contains a user name or password before "
            "the @. Remove it; Cohort does not send them."
        )
    query = f"?{parts.query}" if parts.query else ""
    path = f"{target.path or '/'}{query}"
    return Target(target.scheme, target.host, target.port, path)


def _read(url: str) -> tuple[Any, Target]:
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(
            f"The address {url[:200]!r} contains characters that are not allowed in a "
            "URL. Write international names in their xn-- form."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(
            f"The address {url[:200]!r} is not a valid URL: {error}."
        ) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(
            f"The address {url[:200]!r} must begin with https:// and a host name."
        )
    if "%" in parts.hostname:
        raise ValueError(
            f"The address {url[:200]!r} is not a valid URL: its host contains a % sign."
        )
    # A name may end in the dot of the root; it is the same host without.
    host = parts.hostname.removesuffix(".")
    port = _PORTS[parts.scheme] if port is None else port
    return parts, Target(parts.scheme, host, port, parts.path)


def read_hosts(text: str, variable: str) -> frozenset[tuple[str, int]]:
    """Hosts with their ports, and commas between them, as a variable lists them.

    Raises:
        Refused: they cannot be read.
    """
    names = [name.strip() for name in text.split(",")]
    return frozenset(_read_host(name, variable) for name in names if name)


def _read_host(name: str, variable: str) -> tuple[str, int]:
    try:
        target = read_url(f"http://{name}")
    except ValueError as error:
        raise Refused(f"{variable} cannot be read. {error}") from None
    if target.path or not name.rpartition(":")[2].isdigit():
        raise Refused(
            f"{variable} contains {name!r}. Write hosts with their ports, separated "
            "by commas: localhost:8000,10.0.0.7:8000."
        )
    return target.origin


def check_target(target: Target, allowlist: HostAllowlist) -> None:
    """Check what is known without resolving the host.

    Raises:
        Refused: its scheme or port is only for hosts that are allowed.
    """
    if target.origin in allowlist.allowed:
        return
    if target.scheme not in allowlist.schemes or target.port != _PORTS[target.scheme]:
        ways = " or ".join(
            f"{name} on port {_PORTS[name]}" for name in allowlist.schemes
        )
        raise Refused(
            f"{allowlist.action} only over {ways}; {target.scheme} on port "
            f"{target.port} of {target.host} requires an allowed host. Ask an "
            f"administrator to add {target.authority} to {allowlist.variable}."
        )


def resolve(target: Target, allowlist: HostAllowlist, *, flags: int = 0) -> list[Any]:
    """Return the socket addresses of a host, as `socket.getaddrinfo` gives them.

    They are to be connected to as they are: asked again, a name may say otherwise.

    Args:
        flags: for getaddrinfo, such as AI_NUMERICHOST, by which no one is asked.

    Raises:
        Refused: one of them is not public, and the host is not allowed either.
        OSError: the name cannot be resolved.
    """
    check_target(target, allowlist)
    try:
        addresses = socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, flags=flags
        )
    except UnicodeError:
        raise Refused(f"{target.host[:80]!r} is not a valid host name.") from None
    if target.origin in allowlist.allowed:
        return addresses
    for *_, address in addresses:
        if not is_public(str(address[0])):
            itself = str(address[0]) == target.host
            what = target.host if itself else f"{target.host} is {address[0]}, which"
            raise Refused(
                f"{what} is not a public address. To use a server of your own "
                f"network, ask an administrator to add {target.authority} to "
                f"{allowlist.variable}."
            )
    return addresses


def why_unreachable(error: Exception) -> str:
    """Return what happened and what to do, to follow "It could not be reached: "."""
    match error:
        case socket.gaierror():
            return (
                "its name cannot be resolved. Check the spelling and this server's DNS"
            )
        case TimeoutError():
            return "it timed out. Check for a firewall in between"
        case ConnectionRefusedError():
            return "it refused the connection. Check the port, and that the server runs"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({error.verify_message}). Renew it, "
                "or make this server trust its issuer"
            )
        case ssl.SSLError():
            return "its port does not use TLS. Check the port, or use http"
        case ConnectionError():
            return "it closed the connection before it replied. Try again"
        case IncompleteRead():
            return "it closed the connection in the middle of its reply. Try again"
        case HTTPException():
            return "it did not reply with HTTP. Check the address"
        case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH | errno.EHOSTDOWN):
            return "this server has no network route to it. Check both networks"
    reason = getattr(error, "strerror", None)
    return f"{reason or 'the connection failed'}. Try again"


def is_public(text: str) -> bool:
    """Return whether an IP address is one of the internet's, that anyone may be sent
    to.

    >>> is_public("::ffff:10.0.0.7")
    False
    """
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public_ipv4(address.ipv4_mapped)
        is_other = any(address in network for network in _NOT_GLOBAL)
        return address in _GLOBAL and address.is_global and not is_other
    return _is_public_ipv4(address)


def _is_public_ipv4(address: IPv4Address) -> bool:
    is_unicast = not (address.is_multicast or address.is_reserved)
    is_other = any(address in network for network in _NOT_PUBLIC)
    return address.is_global and is_unicast and not is_other


# How often a reader that waits for a byte asks whether it is still to.
_TICK_SECONDS = 0.25


class Connection(HTTPConnection):
    """To one of a target's addresses, with one deadline for all of an exchange.

    `on_wait` is called while an answer keeps it waiting; what it raises ends that.
    """

    def __init__(
        self,
        target: Target,
        allowlist: HostAllowlist,
        *,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(target.host, target.port)
        self.deadline = math.inf
        self.on_wait = on_wait
        self._target = target
        self._allowlist = allowlist
        if target.scheme == "https":
            self.default_port = 443  # which the Host header then leaves out

    def connect(self) -> None:
        plain = _connect(resolve(self._target, self._allowlist), self)
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
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class _Timed:
    """A socket whose every operation has what is left until the deadline.

    A socket's own time limit begins again with each part that it is sent, so a server
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
        with suppress(OSError):  # it is closed already
            # not TLS's own, which would take the connection apart under its reader
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def receive_into(self, buffer: Any) -> int:
        connection = self._connection
        while True:
            seconds = connection.seconds_left()
            if connection.on_wait is None:
                self._sock.settimeout(seconds)
                return self._sock.recv_into(buffer)
            connection.on_wait()
            self._sock.settimeout(min(seconds, _TICK_SECONDS))
            with suppress(TimeoutError):
                return self._sock.recv_into(buffer)


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


def _connect(addresses: list[Any], connection: Connection) -> socket.socket:
    """Connect to the first of some addresses that takes a connection."""
    last: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in addresses:
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
