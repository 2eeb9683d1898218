"""Training workers and what their machines used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dashboard.runs.models import Run
from dashboard.training.models import SystemSample, Worker
from dashboard.training.system_metrics import METRICS
from dashboard.training.workers import register

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_worker(name: str = "training@gpu-1") -> Worker:
    register(name, num_slots=1)
    return Worker.objects.get(name=name)


def make_samples(
    run: Run, count: int, *, attempt: int = 1, begin: int = 0, gpus: int = 0
) -> None:
    """One each 5 s; every value is the sample's number, counted from `begin`."""
    SystemSample.objects.bulk_create(
        SystemSample(
            run=run,
            attempt=attempt,
            step=i,
            time=START + timedelta(seconds=5 * i),
            values=[float(i)] * (len(METRICS) + 2 * gpus),
        )
        for i in range(begin, begin + count)
    )
