"""What /metrics answers: Prometheus' text format, version 0.0.4.

Each web process tells what it counted itself. What PostgreSQL and Redis know is the
same from each: alert rules take the max over instances. A part that cannot be asked is
left out, and cohort_part_up tells so.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dashboard.observability.metrics import readable
from dashboard.upkeep.health_checks import Report, read_report
from dashboard.upkeep.metrics.truth import read_truth

logger = logging.getLogger(__name__)


class _Found(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


async def exposition() -> bytes:
    report = await read_report()
    found = [*_of_report(report), *_of_pool()]
    if report.part("migrations").state != "failed":
        found += await _truth()
    registry = CollectorRegistry()
    registry.register(_Found(found))
    return generate_latest(readable()) + generate_latest(registry)


async def _truth() -> list[Metric]:
    try:
        return await sync_to_async(read_truth)()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("Metrics without what the database knows: %s", error)
        return []


def _of_report(report: Report) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "cohort_part_up", "1: ok, 0: degraded or failed; see /readyz.", labels=["part"]
    )
    for part in report.parts:
        up.add_metric([part.name], float(part.state == "ok"))
    yield up
    heard = GaugeMetricFamily(
        "cohort_heard_age_seconds",
        "Since the reaper looked, which beat sends to the default workers.",
        labels=["who"],
    )
    age = report.part("periodic tasks").age_seconds
    if age is not None:
        heard.add_metric(["reap"], age)
    yield heard
    messages = GaugeMetricFamily(
        "cohort_messages_waiting",
        "Messages that no worker has taken, by queue.",
        labels=["queue"],
    )
    for queue, number in report.part("redis").num_messages.items():
        messages.add_metric([queue], number)
    yield messages
    if report.part("data folder").state != "failed":
        use = shutil.disk_usage(settings.COHORT_DATA)
        yield GaugeMetricFamily(
            "cohort_disk_free_bytes", "Free where COHORT_DATA is.", value=use.free
        )
        yield GaugeMetricFamily(
            "cohort_disk_size_bytes", "Of that disk.", value=use.total
        )


def _of_pool() -> Iterator[Metric]:
    """This process's connections to the database; without a pool nothing is told."""
    family = GaugeMetricFamily(
        "cohort_database_pool_connections",
        "Of this process: used, free, or waited for by a request.",
        labels=["state"],
    )
    pool = getattr(connection, "pool", None)
    if pool is not None:
        stats = pool.get_stats()
        size, free = stats.get("pool_size", 0), stats.get("pool_available", 0)
        family.add_metric(["used"], size - free)
        family.add_metric(["free"], free)
        family.add_metric(["waited_for"], stats.get("requests_waiting", 0))
    yield family
