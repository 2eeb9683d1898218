"""Training workers and what their machines used."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dashboard.runs.models import Run
from dashboard.supervision.models import RunRanks, SystemSample, Worker
from dashboard.supervision.system_metrics import METRICS
from dashboard.supervision.workers import register

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_worker(name: str = "training@gpu-1") -> Worker:
    register(name, num_slots=1)
    return Worker.objects.get(name=name)


def make_rank(number: int, work: float) -> dict[str, Any]:
    """Two a node, as in trainer.events.RankMeasured."""
    return {
        "node": f"node-{number // 2}",
        "device": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 60 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "seconds": {"generate": work / 2, "work": work, "wait": 1.0, "step": work + 1},
    }


def measure_ranks(run: Run, work: Sequence[float], *, num_steps: int = 6) -> None:
    """The last of several steps, each with the same seconds of work."""
    RunRanks.objects.create(
        run=run,
        attempt=1,
        step=num_steps,
        measured_at=START,
        ranks=[make_rank(number, each) for number, each in enumerate(work)],
        work=[list(work)] * num_steps,
    )


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
