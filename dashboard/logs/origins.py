"""Whose word is taken: that of programs on this machine, which no proxy speaks for."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

# Any of them says that somebody else asks, by way of a proxy.
FORWARDING = frozenset(
    {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"}
)
OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_of_this_machine(address: str, host: str, headers: Iterable[str]) -> bool:
    """Whether a program of this machine asked, by a name that only it has for us.

    A proxy on this machine that says nothing of its visitors passes their Host on. A
    visitor of such a proxy may call us "localhost": where that can be, set a token,
    which is then asked of everybody (upkeep/access.py).
    """
    name, _, port = host.rpartition(":")
    if (name if port.isdigit() else host) not in OWN_NAMES:
        return False
    if not FORWARDING.isdisjoint(headers):
        return False
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
