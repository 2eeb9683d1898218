"""How often a program may ask within a minute."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.accounts.throttling import count

WINDOW_SECONDS = 60
MAX_OF_TOKEN = 600
MAX_OF_INGEST = 1_200  # a trainer that reports each step, of several runs
MAX_OF_ADDRESS = 60  # without a token that works


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    limit: int
    remaining: int
    reset_seconds: int
    is_over: bool

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_seconds),
        }


def count_request(who: str, most: int) -> Count | None:
    """One more of `who`; None where Redis does not answer."""
    counted = count(f"cohort:api:{who}", within_seconds=WINDOW_SECONDS)
    if counted is None:
        return None
    return Count(
        limit=most,
        remaining=max(0, most - counted.number),
        reset_seconds=counted.seconds_left,
        is_over=counted.number > most,
    )
