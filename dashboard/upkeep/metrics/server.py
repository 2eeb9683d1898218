"""Metrics of the server's parts: what /readyz asks, the disk, the pool, the totals."""

from __future__ import annotations

import shutil

from django.conf import settings
from django.db import connection
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from dashboard.meters.catalog import COUNTERS, HISTOGRAMS, LAG_BUCKETS
from dashboard.meters.reading import Told
from dashboard.upkeep.readiness.parts import Report


def of_report(report: Report) -> list[Metric]:
    up = GaugeMetricFamily(
        "cohort_part_up", "1: ok, 0: degraded or failed; see /readyz.", labels=["part"]
    )
    for part in report.parts:
        up.add_metric([part.name], float(part.state == "ok"))
    found: list[Metric] = [up]
    if report.part("data folder").state != "failed":
        use = shutil.disk_usage(settings.COHORT_DATA)
        found += [
            _gauge("cohort_disk_free_bytes", "Free where COHORT_DATA is.", use.free),
            _gauge("cohort_disk_size_bytes", "Of that disk.", use.total),
        ]
    return found


def of_pool() -> list[Metric]:
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
    return [family]


def of_told(told: Told) -> list[Metric]:
    heard = GaugeMetricFamily(
        "cohort_heard_age_seconds",
        "Since beat, a default worker, the dispatcher or the reaper was heard from.",
        labels=["who"],
    )
    for who, age in told.heard.items():
        if age is not None:
            heard.add_metric([who], age)
    messages = GaugeMetricFamily(
        "cohort_messages_waiting",
        "Messages that no worker has taken, by queue.",
        labels=["queue"],
    )
    for queue, number in told.num_messages.items():
        messages.add_metric([queue], number)
    return [heard, messages, *_counters(told), *_histograms(told)]


def _counters(told: Told) -> list[Metric]:
    found: list[Metric] = []
    for name, text in COUNTERS.items():
        samples = told.totals.get(name, {})
        labels = [label for label, _ in next(iter(samples), ())]
        family = CounterMetricFamily(name, text, labels=labels)
        for pairs, value in samples.items():
            family.add_metric([given for _, given in pairs], value)
        if not samples:
            family = CounterMetricFamily(name, text, value=0)
        found.append(family)
    return found


def _histograms(told: Told) -> list[Metric]:
    found: list[Metric] = []
    for name, text in HISTOGRAMS.items():
        counted = {
            dict(pairs)["le"]: value
            for pairs, value in told.totals.get(f"{name}_bucket", {}).items()
        }
        bounds = [*(f"{bound:g}" for bound in LAG_BUCKETS), "+Inf"]
        buckets = [(bound, counted.get(bound, 0.0)) for bound in bounds]
        [total] = told.totals.get(f"{name}_sum", {(): 0.0}).values()
        family = HistogramMetricFamily(name, text)
        family.add_metric([], buckets, total)
        found.append(family)
    return found


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
