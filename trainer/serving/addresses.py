"""Where a model server may be: what it is sent is not encrypted."""

from __future__ import annotations

import ipaddress
import socket


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
