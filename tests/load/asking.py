"""Requests at a steady rate, each timed from when it was due.

A server that falls behind makes the next ones wait, and they say so: the rate is kept
whatever the answers take.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from urllib.parse import urlsplit

NUM_THREADS = 64
TIMEOUT_SECONDS = 30
# uvicorn closes a connection that is idle for 5 s; a browser then opens another.
KEPT_SECONDS = 3


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A kind of page, how often of all, and addresses to choose from."""

    name: str
    weight: float
    paths: Sequence[str]


@dataclass
class Answers:
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)

    def all_seconds(self) -> list[float]:
        return sorted(one for some in self.seconds.values() for one in some)


def ask_steadily(
    address: str,
    asked: Sequence[Asked],
    *,
    headers: Mapping[str, str],
    rate: float,
    seconds: float,
) -> Answers:
    draw = random.Random(0)
    kinds = draw.choices(
        asked, weights=[one.weight for one in asked], k=int(rate * seconds)
    )
    due: SimpleQueue[tuple[float, str, str] | None] = SimpleQueue()
    begin = time.monotonic() + 0.5
    for number, kind in enumerate(kinds):
        due.put((begin + number / rate, kind.name, draw.choice(kind.paths)))
    answers, lock = Answers(), threading.Lock()

    def work() -> None:
        connection = http.client.HTTPConnection(
            urlsplit(address).netloc, timeout=TIMEOUT_SECONDS
        )
        used_at = time.monotonic()
        while (task := due.get()) is not None:
            at, name, path = task
            time.sleep(max(0.0, at - time.monotonic()))
            if time.monotonic() - used_at > KEPT_SECONDS:
                connection.close()
            used_at = time.monotonic()
            fault = _ask(connection, path, headers)
            spent = time.monotonic() - at
            with lock:
                answers.seconds[name].append(spent)
                if fault:
                    answers.faults.append(f"{path}: {fault}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        due.put(None)
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _ask(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]
) -> str | None:
    """What was wrong with the answer."""
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"{type(error).__name__}: {error}"
    return None if answer.status == 200 else f"status {answer.status}"


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
