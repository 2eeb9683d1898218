"""/metrics in Prometheus' text format, version 0.0.4.

Each web process has its own counters. Values from PostgreSQL and Redis are the same for
each, read on request by few statements of at most two seconds: alert rules use the
maximum over instances. An unreadable part is left out, and cohort_part_up reports it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import Sum
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dashboard.jobs.kinds import all_kinds
from dashboard.jobs.models import OPEN, JobState
from dashboard.observability.metrics import readable
from dashboard.operations.health_checks import Report, read_report
from dashboard.project.database import fetch_all
from dashboard.runs.models import Run, RunState
from dashboard.supervision.lease import LEASE
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import GONE_AFTER

logger = logging.getLogger(__name__)
MOST_WORKERS = 500
STATEMENT_SECONDS = 2
JOBS = """
    SELECT kind, state, count(*), extract(epoch FROM now() - min(created_at))
    FROM jobs_job WHERE state IN ('queued', 'running') GROUP BY 1, 2
"""
# Runs that are neither in the trash nor external. One on hold waits for a
# person, not for a worker.
RUNS = """
    SELECT state, count(*), max(ingest_lag),
           extract(epoch FROM now() - min(queued_at)),
           extract(epoch FROM now() - min(lease_until) + make_interval(secs => %s))
    FROM (
        SELECT state, lease_until, ingest_lag,
               CASE WHEN state = 'queued' AND NOT on_hold THEN greatest(created_at, (
                   SELECT max(ended_at) FROM runs_epoch WHERE run_id = runs_run.id
               )) END AS queued_at
        FROM runs_run WHERE trashed_at IS NULL AND origin = '{}'
    ) AS found GROUP BY state
"""
CONNECTIONS = """
    SELECT coalesce(state, 'unknown'), count(*) FROM pg_stat_activity
    WHERE datname = current_database() GROUP BY 1
"""
HELD = ("starting", "running", "pausing", "stopping")


@transaction.atomic
def read_database_metrics() -> list[Metric]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
    return [*_runs(), *_jobs(), *_workers(), *_database()]


def _runs() -> Iterator[Metric]:
    rows = {state: rest for state, *rest in fetch_all(RUNS, [LEASE.total_seconds()])}
    runs = GaugeMetricFamily("cohort_runs", "Runs by state.", labels=["state"])
    for state in RunState.values:
        runs.add_metric([state], rows.get(state, [0])[0])
    yield runs
    yield GaugeMetricFamily(
        "cohort_queue_oldest_age_seconds",
        "Age of the oldest queued run, without runs on hold; 0 if none is queued.",
        value=float(rows["queued"][2] or 0) if "queued" in rows else 0,
    )
    leases = [float(rows[state][3] or 0) for state in HELD if state in rows]
    yield GaugeMetricFamily(
        "cohort_lease_oldest_age_seconds",
        "Time since the oldest lease was renewed; 0 if there is none.",
        value=max(0.0, *leases) if leases else 0,
    )
    lags = [float(rows[state][1] or 0) for state in HELD if state in rows]
    yield GaugeMetricFamily(
        "cohort_ingest_lag_seconds",
        "Delay from event to database row, largest over the runs in training.",
        value=max(lags, default=0),
    )
    yield CounterMetricFamily(
        "cohort_ingested_events",
        "Events stored for all runs; decreases when a run is permanently deleted.",
        value=Run.everywhere.aggregate(all=Sum("seq"))["all"] or 0,
    )


def _jobs() -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "cohort_jobs",
        "Queued and running imports, analyses, rescorings and probes.",
        labels=["kind", "state"],
    )
    age = GaugeMetricFamily(
        "cohort_job_oldest_age_seconds",
        "Age of the oldest queued job of this kind; 0 if none is queued.",
        labels=["kind"],
    )
    counts = {(kind, state): rest for kind, state, *rest in fetch_all(JOBS)}
    for kind in all_kinds():
        for state in OPEN:
            family.add_metric(
                [kind.name, state], counts.get((kind.name, state), [0])[0]
            )
        waits = counts.get((kind.name, JobState.QUEUED), [0, 0])[1]
        age.add_metric([kind.name], float(waits))
    yield from (family, age)


def _workers() -> Iterator[Metric]:
    age = _family(
        "worker_heard_age", "Time since the worker's last heartbeat.", "seconds", []
    )
    slots = _family("worker_slots", "Runs that the worker can train at once.", "", [])
    memory = _family(
        "worker_memory_used", "Memory used on the worker's machine.", "bytes", []
    )
    free = _family(
        "worker_disk_free",
        "Free space on the disk with the worker's data folder.",
        "bytes",
        [],
    )
    use = _family("gpu_utilization", "GPU utilization, 0 to 1.", "ratio", ["gpu"])
    held = _family("gpu_memory_used", "Of a worker's GPU.", "bytes", ["gpu"])
    size = _family("gpu_memory_size", "Of a worker's GPU.", "bytes", ["gpu"])
    ((now,),) = fetch_all("SELECT now()")
    there = Worker.objects.filter(stopped_at=None).order_by("name")
    for worker in there[:MOST_WORKERS]:
        silent = now - worker.last_seen
        age.add_metric([worker.name], max(0.0, silent.total_seconds()))
        if silent > GONE_AFTER:
            continue  # its last report is out of date
        slots.add_metric([worker.name], worker.num_slots)
        _add(memory, [worker.name], worker.use.get("memory"))
        _add(free, [worker.name], worker.use.get("disk_free"))
        for number, gpu in enumerate(worker.use.get("gpus", [])):
            labels = [worker.name, str(number)]
            percent = gpu.get("percent")
            _add(use, labels, None if percent is None else percent / 100)
            _add(held, labels, gpu.get("memory_bytes"))
        for number, gpu in enumerate(worker.hardware.get("gpus", [])):
            _add(size, [worker.name, str(number)], gpu.get("memory_bytes"))
    yield from (age, slots, memory, free, use, held, size)


def _database() -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "cohort_database_connections",
        "Connections to the database from all processes, by state.",
        labels=["state"],
    )
    for state, number in fetch_all(CONNECTIONS):
        family.add_metric([state], number)
    ((size,),) = fetch_all("SELECT pg_database_size(current_database())")
    yield family
    yield GaugeMetricFamily(
        "cohort_database_size_bytes", "Size of the database on disk.", value=size
    )


def _family(name: str, text: str, unit: str, more: list[str]) -> GaugeMetricFamily:
    whole = "_".join(filter(None, ("cohort", name, unit)))
    return GaugeMetricFamily(whole, text, labels=["worker", *more])


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


# The answer: this process's counts, health checks, the pool, the database.


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


async def exposition() -> bytes:
    report = await read_report()
    families = [*_of_report(report), *_of_pool()]
    if report.part("migrations").state != "failed":
        try:
            families += await sync_to_async(read_database_metrics)()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Failed to read metrics from the database: %s", error)
    return generate_latest(readable()) + generate_latest(_Collected(families))


def _of_report(report: Report) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "cohort_part_up", "1: ok, 0: degraded or failed; see /readyz.", labels=["part"]
    )
    for part in report.parts:
        up.add_metric([part.name], float(part.state == "ok"))
    yield up
    reaper_age = GaugeMetricFamily(
        "cohort_heard_age_seconds",
        "Time since the last periodic task.",
        labels=["who"],
    )
    age = report.part("periodic tasks").age_seconds
    if age is not None:
        reaper_age.add_metric(["reap"], age)
    yield reaper_age
    messages = GaugeMetricFamily(
        "cohort_messages_waiting",
        "Messages waiting for a worker, by queue.",
        labels=["queue"],
    )
    for queue, number in report.part("redis").num_messages.items():
        messages.add_metric([queue], number)
    yield messages
    if report.part("data folder").state != "failed":
        use = shutil.disk_usage(settings.COHORT_DATA)
        yield GaugeMetricFamily(
            "cohort_disk_free_bytes",
            "Free space on the disk with COHORT_DATA.",
            value=use.free,
        )
        yield GaugeMetricFamily(
            "cohort_disk_size_bytes",
            "Size of the disk with COHORT_DATA.",
            value=use.total,
        )


def _of_pool() -> Iterator[Metric]:
    """This process's connections to the database; nothing without a pool."""
    family = GaugeMetricFamily(
        "cohort_database_pool_connections",
        "Connections of this process: used, free or waited for.",
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
