"""A long run's curves, timed: `pytest -m load tests/bench/bench_curves.py -s`."""

import gzip
import time
from collections.abc import Callable

import pytest

from dashboard.accounts.models import Team
from dashboard.live.messages import Position
from dashboard.runs.charts.figures import features_of_run, shown_metrics
from dashboard.runs.charts.series import read_history
from dashboard.runs.models import Run
from dashboard.runs.stream import read_frame
from tests.bench.machine import heading, say, table
from tests.dashboard.completions.factories import make_run
from tests.dashboard.runs.stories import make_history

pytestmark = pytest.mark.load
NUM_STEPS = 100_000


def best_seconds(call: Callable[[], object], *, times: int = 7) -> float:
    """Of several: what the work costs, without what else the machine does."""
    call()  # warms the cache, as the page's own query does
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def show(rows: list[list[str]]) -> None:
    say("\n" + heading("pytest", packages=("django", "psycopg")))
    say(table(("a long run's answers, best of 7", "server part"), rows))


def test_twelve_metrics_are_at_most_1_000_points_each(team):
    run = make_run(team)
    make_history(run, num_steps=NUM_STEPS, num_metrics=40)
    metrics = run.metric_names[:36:3]

    seconds = best_seconds(lambda: read_history(run, metrics))

    show([[f"12 metrics × {NUM_STEPS:,} steps", f"{seconds * 1000:.0f} ms"]])
    curves = read_history(run, metrics).curves
    assert all(len(curves[metric].steps) <= 1_000 for metric in metrics)


def make_long_run(team: Team) -> Run:
    """60 metrics, those of the overview's charts among them."""
    run = make_run(team)
    shown = sorted(shown_metrics(features_of_run(run)))
    make_history(run, num_steps=NUM_STEPS, num_metrics=60, names=shown)
    return run


def test_the_pages_answers(team, alice_client):
    run = make_long_run(team)
    page = f"/{team.slug}/runs/{run.id}/"
    metrics = ",".join(run.metric_names[:12])
    calls = {
        "page": lambda: alice_client.get(page),
        "snapshot": lambda: read_frame(run, Position()),
        "stream.json": lambda: alice_client.get(page + "stream.json"),
        "curves.json, 12 metrics": lambda: alice_client.get(
            page + "curves.json", {"metrics": metrics}
        ),
        "curves.json, 12, 5% of it": lambda: alice_client.get(
            page + "curves.json",
            {"metrics": metrics, "first_step": 50_001, "last_step": 55_000},
        ),
    }
    rows = [
        [name, f"{best_seconds(call) * 1000:.0f} ms"] for name, call in calls.items()
    ]
    body = alice_client.get(page + "stream.json").content
    sizes = [len(body), len(gzip.compress(body, 6))]
    plain, packed = (f"{size / 1e3:.0f} kB" for size in sizes)
    show([*rows, ["snapshot, size", plain], ["snapshot, packed", packed]])
