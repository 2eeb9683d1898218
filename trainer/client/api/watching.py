"""A run, looked at again and again until it has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainer.client.api.patience import LONGEST_WAIT, ended, seconds_to_wait
from trainer.client.api.records import Point
from trainer.client.http import Unreachable

if TYPE_CHECKING:
    from trainer.client.api.client import Client
    from trainer.client.api.run import RunDetail

logger = logging.getLogger("cohort")
LOOK_SECONDS = 2.0
OUTAGE_SECONDS = 900.0  # a server that is away longer ends the watch


@dataclass(frozen=True, slots=True)
class Look:
    run: RunDetail
    points: list[Point]  # that were not there at the look before
    is_behind: bool = False  # there are more already


def follow(
    client: Client, run_id: int, *, from_step: int = 0, every_seconds: float
) -> Iterator[Look]:
    """The last look is at the run when it has ended. A server that is away meanwhile
    is waited for."""
    seen = Seen(from_step)
    last_answer: float | None = None
    attempt = 0
    while True:
        try:
            look = _look(client, run_id, seen)
        except Unreachable as error:
            # One that never answered is more likely a wrong address.
            now = time.monotonic()
            if last_answer is None or now - last_answer > OUTAGE_SECONDS:
                raise
            wait = min(seconds_to_wait(error, attempt), LONGEST_WAIT)
            logger.warning("%s Looking again in %.3g s.", ended(str(error)), wait)
            attempt = min(attempt + 1, 6)
            time.sleep(wait)
            continue
        last_answer, attempt = time.monotonic(), 0
        yield look
        if look.is_behind:
            continue
        if look.run.has_ended:
            return
        time.sleep(every_seconds)


def wait(client: Client, run_id: int, *, every_seconds: float) -> RunDetail:
    """Until it has ended; its points are not read."""
    never = 2**31 - 1
    *_, last = follow(client, run_id, from_step=never, every_seconds=every_seconds)
    return last.run


def _look(client: Client, run_id: int, seen: Seen) -> Look:
    run = client.runs.get(run_id)  # first: points of an ended run are all there
    if seen.step > run.num_steps:
        return Look(run, [])
    _, points, more = run.page_of_metrics(first_step=seen.step)
    new = [one for point in points if (one := seen.take(point))]
    return Look(run, new, is_behind=more is not None)


class Seen:
    """What of a run was given away. Held-out scores may come after their step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._names: set[str] = set()  # at that step

    def take(self, point: Point) -> Point | None:
        """What is new of a point from `step` on."""
        known = self._names if point.step == self.step else set()
        new = {n: v for n, v in point.values.items() if n not in known}
        self.step, self._names = point.step, known | point.values.keys()
        return replace(point, values=new) if new else None
