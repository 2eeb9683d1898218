"""Where a judge may be asked: public addresses, and hosts that the server allows."""

from __future__ import annotations

import socket
from collections.abc import Set
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
# Clouds tell their machines secrets at addresses that pass for public ones by their
# number: Azure's, and Oracle's, which not every Python knows to be reserved.
_HOST_SERVICES = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
# What the internet's registries hand out (RFC 4291), but for what carries IPv4 inside.
_GLOBAL = IPv6Network("2000::/3")
_TUNNELS = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))


class Refused(Exception):
    """A judge may not be asked there; the text says why and what to do."""


@dataclass(frozen=True)
class Target:
    """A base URL, taken apart.

    >>> Target("https", "api.example.com", 443, "/v1")
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, int]:
        return self.host, self.port


def read_url(url: str) -> Target:
    """The parts of a base URL.

    Raises:
        ValueError: it is none, or has parts that a base URL has not.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(
            f"The address {url!r} holds characters that no URL has. Write "
            "international names as their xn-- form."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"The address {url!r} is no URL: {error}.") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(
            f"The address {url!r} must begin with https:// and a host, such as "
            "https://api.openai.com/v1."
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"The address of {parts.hostname} holds a name, a query or a fragment. "
            "Give the base URL alone; a key belongs into the environment of the worker."
        )
    return Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=_PORTS[parts.scheme] if port is None else port,
        path=parts.path.rstrip("/"),
    )


def check_target(target: Target, allowed: Set[tuple[str, int]]) -> None:
    """What can be told without asking for the host's addresses.

    Raises:
        Refused: it is neither https on its own port nor a host that is allowed.
    """
    if target.origin in allowed:
        return
    if target.scheme != "https" or target.port != _PORTS["https"]:
        raise Refused(
            f"A judge is asked over https on port 443; {target.scheme} on port "
            f"{target.port} of {target.host} is only for hosts that this server "
            f"allows. An administrator adds {_named(target)} to COHORT_JUDGE_HOSTS."
        )


def resolve(target: Target, allowed: Set[tuple[str, int]]) -> list[Any]:
    """The socket addresses of a host, as `socket.getaddrinfo` gives them.

    They are to be connected to as they are: asked again, a name may say otherwise.

    Raises:
        Refused: one of them is not public, and the host is not allowed either.
        OSError: the name cannot be resolved.
    """
    check_target(target, allowed)
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise Refused(f"{target.host[:80]!r} cannot be the name of a host.") from None
    if target.origin in allowed:
        return found
    for *_, address in found:
        if not is_public(str(address[0])):
            raise Refused(
                f"{target.host} is {address[0]}, which is not a public address. For a "
                "model of your own network, an administrator adds "
                f"{_named(target)} to COHORT_JUDGE_HOSTS."
            )
    return found


def is_public(text: str) -> bool:
    """Whether an IP address is one of the internet's, that anybody may be sent to.

    >>> is_public("::ffff:10.0.0.7")
    False
    """
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return _is_public_ipv4(address.ipv4_mapped)
        is_tunnel = any(address in network for network in _TUNNELS)
        return address in _GLOBAL and address.is_global and not is_tunnel
    return _is_public_ipv4(address)


def _is_public_ipv4(address: IPv4Address) -> bool:
    is_unicast = not (address.is_multicast or address.is_reserved)
    is_service = any(address in network for network in _HOST_SERVICES)
    return address.is_global and is_unicast and not is_service


def _named(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"
