"""What the processes told each other; RedisError where nobody can be asked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from dashboard.meters.catalog import HEARD_SECONDS
from dashboard.meters.shared import (
    HEARD,
    HEARD_LIFE_MS,
    LAG,
    LAG_LIFE_MS,
    TOTALS,
)

Labelled = dict[tuple[tuple[str, str], ...], float]  # by label and value
QUEUES = ("default", "training")


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    heard: dict[str, float | None]  # seconds ago; None: not within a day
    totals: dict[str, Labelled]  # by metric
    num_messages: dict[str, int]  # that no worker has taken, by queue


def read_told(client: redis.Redis) -> Told:
    pipe = client.pipeline(transaction=False)
    for who in HEARD_SECONDS:
        pipe.pttl(HEARD + who)
    for queue in QUEUES:
        pipe.llen(queue)
    pipe.hgetall(TOTALS)
    *numbers, totals = pipe.execute()
    return Told(
        heard=ages_of(numbers[: len(HEARD_SECONDS)]),
        totals=parse_totals(totals),
        num_messages=dict(zip(QUEUES, numbers[len(HEARD_SECONDS) :], strict=True)),
    )


def ages_of(left: Iterable[int]) -> dict[str, float | None]:
    """From what is left of each key's life, in ms; -2: there is none."""
    return {
        who: (HEARD_LIFE_MS - ms) / 1_000 if ms >= 0 else None
        for who, ms in zip(HEARD_SECONDS, left, strict=True)
    }


def parse_totals(fields: dict[str, str]) -> dict[str, Labelled]:
    found: dict[str, Labelled] = defaultdict(dict)
    for key, value in fields.items():
        name, labels = json.loads(key)
        found[name][tuple(sorted(labels.items()))] = float(value)
    return dict(found)


def read_lags(
    client: redis.Redis, run_ids: Iterable[int]
) -> dict[int, tuple[float, float]]:
    """Of each run that told: seconds of lag, and how long ago it told."""
    ids = list(run_ids)
    pipe = client.pipeline(transaction=False)
    for run_id in ids:
        pipe.get(f"{LAG}{run_id}")
        pipe.pttl(f"{LAG}{run_id}")
    answers = pipe.execute() if ids else []
    found = zip(ids, answers[::2], answers[1::2], strict=True)
    return {
        run_id: (float(lag), (LAG_LIFE_MS - left) / 1_000)
        for run_id, lag, left in found
        if lag is not None
    }
