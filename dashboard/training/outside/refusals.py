"""Why what an outside trainer sends is not taken."""

from __future__ import annotations


class Fenced(Exception):
    """The lines are of an attempt that a newer one has replaced."""


class Gap(Exception):
    """Lines are missing before the first one that came; `stored` is the last there."""

    def __init__(self, *, first: int, stored: int) -> None:
        self.stored = stored
        super().__init__(
            f"Line {first:,} came, but the last one stored is {stored:,}. Send on "
            f"from line {stored + 1:,}."
        )


class Over(Exception):
    """The run has ended, so it takes no further line."""


class Full(Exception):
    """The team has as many runs, or as much stored, as it may: come again later."""
