"""What /metrics answers: Prometheus' text format, version 0.0.4.

Each web process tells what it counted itself. What PostgreSQL and Redis know is the
same from each: alert rules take the max over instances. A part that cannot be asked is
left out, and cohort_part_up tells so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from dashboard.meters.reading import Told, read_told
from dashboard.meters.shared import connect
from dashboard.meters.web import readable
from dashboard.upkeep.metrics.server import of_pool, of_report, of_told
from dashboard.upkeep.metrics.truth import read_truth
from dashboard.upkeep.readiness.parts import Report
from dashboard.upkeep.readiness.report import SHARED_SECONDS, read_report
from dashboard.upkeep.readiness.waiting import Shared, in_thread

logger = logging.getLogger(__name__)


class _Found(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


async def exposition() -> bytes:
    report = await read_report()
    found = [*of_report(report), *of_pool()]
    if report.part("redis").state != "failed":
        found += await _told.read()
    if report.part("migrations").state != "failed":
        found += await _truth(report)
    registry = CollectorRegistry()
    registry.register(_Found(found))
    return generate_latest(readable()) + generate_latest(registry)


async def _look() -> list[Metric]:
    try:
        return of_told(await in_thread("metrics of redis", _read_told))
    except (RedisError, OSError) as error:  # a TimeoutError is one
        logger.warning("Metrics without what Redis knows: %s", error)
        return []


_told = Shared(_look, seconds=SHARED_SECONDS)


async def _truth(report: Report) -> list[Metric]:
    try:
        return await sync_to_async(read_truth)()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("Metrics without what the database knows: %s", error)
        return []


def _read_told() -> Told:
    with connect() as client:
        return read_told(client)
