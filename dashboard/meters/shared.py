"""Counts that all processes share: kept in Redis, added to every two seconds.

Workers' processes come and go and open no port, so nobody could ask each of them. What
they add up only rises; where Redis forgets it, that is a counter's reset, as Prometheus
knows it. Beside the counts: who was heard from, and the lag of runs.
Nothing here ever waits for Redis, raises, or holds more than a few kilobytes.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import defaultdict

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.meters.catalog import COUNTERS, HISTOGRAMS, LAG_BUCKETS

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 2.0
TOTALS = "cohort:meters:totals"
HEARD = "cohort:meters:heard:"
LAG = "cohort:meters:lag:"
# A key lives so long from when it was set: what is left of it tells its age by Redis'
# own clock, so no two machines' clocks are compared.
HEARD_LIFE_MS = 86_400_000
LAG_LIFE_MS = 300_000


class Pending:
    """What this process has not told yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, float] = defaultdict(float)
        self.heard: set[str] = set()
        self.lags: dict[int, float] = {}
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Called with the lock held; one thread a process."""
        if self.thread is None:
            self.thread = threading.Thread(target=_tell, name="meters", daemon=True)
            self.thread.start()


_pending = Pending()


def _forget() -> None:
    """A forked child has neither the thread, nor is what was counted its own."""
    global _pending
    _pending = Pending()


os.register_at_fork(after_in_child=_forget)


def count(name: str, amount: float = 1, **labels: str) -> None:
    assert name in COUNTERS, name
    _add({field(name, labels): amount})


def observe_lag(run_id: int, seconds: float) -> None:
    [name] = HISTOGRAMS
    seconds = max(0.0, seconds)  # clocks may differ
    within = [f"{bound:g}" for bound in LAG_BUCKETS if seconds <= bound] + ["+Inf"]
    added = {field(f"{name}_bucket", {"le": bound}): 1.0 for bound in within}
    _add({**added, field(f"{name}_sum", {}): seconds})
    with _pending.lock:
        _pending.lags[run_id] = seconds


def hear(who: str) -> None:
    """`who` lives: the page of operators and /readyz tell when that was last so."""
    with _pending.lock:
        _pending.heard.add(who)
        _pending.start()


def field(name: str, labels: dict[str, str]) -> str:
    return json.dumps([name, labels], sort_keys=True)


def _add(amounts: dict[str, float]) -> None:
    with _pending.lock:
        for key, amount in amounts.items():
            _pending.counts[key] += amount
        _pending.start()


def connect() -> redis.Redis:
    """Answers within a second or not at all."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=1,
        socket_connect_timeout=1,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )


def _tell() -> None:
    wait = threading.Event()
    with connect() as client:
        while True:
            wait.wait(FLUSH_SECONDS)
            flush(client)


def flush(client: redis.Redis) -> None:
    """Tell all that is pending; what could not be told is added to what comes."""
    with _pending.lock:
        counts, heard, lags = _pending.counts, _pending.heard, _pending.lags
        _pending.counts, _pending.heard, _pending.lags = defaultdict(float), set(), {}
    if not (counts or heard or lags):
        return
    pipe = client.pipeline(transaction=True)
    for key, amount in counts.items():
        pipe.hincrbyfloat(TOTALS, key, amount)
    for who in heard:
        pipe.set(HEARD + who, 1, px=HEARD_LIFE_MS)
    for run_id, seconds in lags.items():
        pipe.set(f"{LAG}{run_id}", f"{seconds:.3f}", px=LAG_LIFE_MS)
    try:
        pipe.execute()
    except (redis.RedisError, OSError) as error:
        logger.debug("Counts wait for Redis: %s", error)
        _put_back(counts)


def _put_back(counts: dict[str, float]) -> None:
    """Not who was heard from: that would be told too late."""
    with _pending.lock:
        for key, amount in counts.items():
            _pending.counts[key] += amount
