"""What /metrics and /readyz cost: `pytest -m load tests/bench/bench_scrape.py -s`.

A server with 1,000 runs of three lives each, 20 of them queued, and 50 workers of eight
GPUs; through Django's own client, the median of 20 answers after one.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.runs.models import Epoch, RunState
from dashboard.training.models import Worker
from dashboard.training.workers import register
from dashboard.upkeep.readiness.report import forget_report
from tests.bench.machine import heading, say, table
from tests.dashboard.samples.factories import make_run

pytestmark = [pytest.mark.load, pytest.mark.django_db]
NUM_RUNS, NUM_QUEUED, NUM_WORKERS = 1_000, 20, 50
TURNS = 20


def fill(team: Team) -> None:
    lives = []
    for number in range(NUM_RUNS):
        state = RunState.QUEUED if number < NUM_QUEUED else RunState.FINISHED
        run = make_run(team, f"run-{number}", state=state)
        lives += [
            Epoch(run=run, number=n, worker="w", claimed_at=Now(), ended_at=Now())
            for n in (1, 2, 3)
        ]
    Epoch.objects.bulk_create(lives)
    for number in range(NUM_WORKERS):
        register(f"training@gpu-{number}", num_slots=1)
    gpus = [{"percent": 50.0, "memory_bytes": 2**36}] * 8
    Worker.objects.update(use={"memory": 1.0, "disk_free": 1.0, "gpus": gpus})


def median_ms(path: str) -> tuple[float, float, int]:
    client, took, size = Client(), [], 0
    for _ in range(TURNS + 1):
        forget_report()
        began = time.perf_counter()
        response = client.get(path, headers={"host": "localhost"})
        took.append(1_000 * (time.perf_counter() - began))
        assert response.status_code == 200
        size = len(response.content)
    return statistics.median(took[1:]), max(took[1:]), size


def test_a_scrape(team: Team) -> None:
    Path(settings.COHORT_DATA).mkdir(parents=True, exist_ok=True)
    fill(team)
    rows = []
    for path in ("/metrics", "/readyz"):
        median, most, size = median_ms(path)
        rows.append([path, f"{median:.0f}", f"{most:.0f}", f"{size / 1_000:.1f}"])

    say(heading("tests.bench.bench_scrape", packages=["django", "prometheus-client"]))
    say(table(["address", "median, ms", "longest, ms", "kB"], rows))
