"""A request again, where the server did not answer or asks to come later."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainer.client.http import Unreachable

T = TypeVar("T")
logger = logging.getLogger("cohort")
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0  # a server that asks for more is given up


@dataclass(frozen=True, slots=True)
class Patience:
    """Waits as long as the server asks, else twice as long each time."""

    retries: int = 4

    def ask(self, do: Callable[[], T]) -> T:
        """`do` may be done twice, so a POST names an Idempotency-Key."""
        for attempt in range(self.retries):
            try:
                return do()
            except Unreachable as error:
                wait = seconds_to_wait(error, attempt)
                if wait > LONGEST_WAIT:
                    raise
                logger.warning("%s Trying again in %.3g s.", ended(str(error)), wait)
                time.sleep(wait)
        return do()


def seconds_to_wait(error: Unreachable, attempt: int) -> float:
    if error.after_seconds is not None:
        return error.after_seconds
    return FIRST_WAIT * 2.0**attempt * random.uniform(0.75, 1.25)


def ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", ")", "!", "?")) else f"{sentence}."
