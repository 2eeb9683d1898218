"""Redis, and whoever is heard of by it: beat, a default worker, its steady tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping

import redis

from dashboard.meters.catalog import HEARD_SECONDS
from dashboard.meters.reading import read_told
from dashboard.meters.shared import connect
from dashboard.quiet_log import quieten
from dashboard.upkeep.readiness.parts import Part, missing
from dashboard.upkeep.readiness.waiting import in_thread

LATE_FACTOR = 6  # as many times its usual silence
REMEDIES = {
    "beat": "Start beat: celery -A dashboard.celery:app beat",
    "default worker": (
        "Start a default worker, or one more if all its slots are taken: celery -A "
        "dashboard.celery:app worker --queues default"
    ),
    "dispatch": "Look at beat and the default worker, which send runs to the workers.",
    "reap": "Look at beat and the default worker, which find runs of workers gone.",
}
NAMES = {"dispatch": "dispatcher", "reap": "reaper"}


async def check_redis() -> list[Part]:
    began = time.perf_counter()
    try:
        told = await in_thread("redis", _read)
    except (redis.RedisError, OSError) as error:
        return redis_gone(quieten(str(error)))
    seconds = time.perf_counter() - began
    found = Part(
        name="redis",
        state="ok",
        value=f"answered in {1_000 * seconds:,.0f} ms",
        runbook="redis-gone",
    )
    return [found, *judge_heard(told)]


def redis_gone(why: str) -> list[Part]:
    start = "Start Redis, or mend REDIS_URL. Pages ask for what is new every 2 s."
    asked = "not known, as Redis does not answer"
    return [
        missing("redis", why, start, runbook="redis-gone"),
        *(
            missing(NAMES.get(who, who), asked, start, runbook="redis-gone")
            for who in HEARD_SECONDS
        ),
    ]


def judge_heard(ages: Mapping[str, float | None]) -> list[Part]:
    return [_judge(who, age) for who, age in ages.items()]


def _judge(who: str, age: float | None) -> Part:
    limit = LATE_FACTOR * HEARD_SECONDS[who]
    is_late = age is None or age > limit
    heard = "not heard from within a day" if age is None else f"heard {age:,.0f} s ago"
    return Part(
        name=NAMES.get(who, who),
        state="degraded" if is_late else "ok",
        value=f"{heard}; late after {limit} s",
        age_seconds=age,
        remedy=REMEDIES[who] if is_late else "",
        runbook="beat-or-the-default-worker-is-silent",
    )


def _read() -> Mapping[str, float | None]:
    with connect() as client:
        return read_told(client).heard
