"""A user of its own for each sandbox that root starts.

The kernel counts processes by user, and lets those of one user look at one another, so
no two sandboxes may share one. A number is taken by a name that the kernel gives to one
process at a time, and takes back when that process ends, however it ends.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

# Numbers that no user has: below are those of people, systems and containers.
FIRST, COUNT = 1_879_048_192, 2**20
NOBODY = 65_534
_TRIES = 50


class Uid:
    """A user's number, and the right to it until `release`."""

    def __init__(self, number: int, held: socket.socket | None) -> None:
        self.number = number
        self._held = held

    def release(self) -> None:
        if self._held is not None:
            self._held.close()


def reserve() -> Uid:
    """A number that no other sandbox here has; nobody's where none can be had."""
    random_numbers = random.SystemRandom()
    for _ in range(_TRIES):
        number = random_numbers.randrange(FIRST, FIRST + COUNT)
        if not _is_mapped(number):
            break
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0cohort-sandbox-{number}")
        except OSError:  # another sandbox's
            held.close()
        else:
            return Uid(number, held)
    return Uid(NOBODY, None)


def _is_mapped(number: int) -> bool:
    """Whether this machine, perhaps a container, has a user of this number."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= number < first + count for first, _, count in ranges)
