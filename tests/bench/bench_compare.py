"""Ten long runs compared, timed: `pytest -m load tests/bench/bench_compare.py -s`."""

import json
import statistics
import time

import pytest
from django.db import connection
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.analysis.compare.points import read_means_once
from dashboard.runs.charts.downsampling import build_rollups, make_summaries
from dashboard.runs.models import Run
from tests.bench.bench_curves import NUM_STEPS
from tests.bench.machine import heading, say, table
from tests.dashboard.completions.factories import make_config, make_run

pytestmark = pytest.mark.load
NUM_METRICS = 40
NAMES = ["reward/mean", "total/tokens", "total/completions"]
VIEWS = {
    "each run by itself": {"by": "none"},
    "2 sets of 5 seeds: mean": {},
    "over tokens": {"x": "tokens"},
    "over time": {"x": "time"},
    "smoothed by 0.9": {"smooth": "0.9"},
    "IQM, bootstrap": {"stat": "iqm"},
    "IQM, over tokens, paired": {"stat": "iqm", "x": "tokens", "paired": "on"},
}


def make_sets(team: Team) -> list[Run]:
    first = make_run(team, "a-0", config=make_config(seed=0))
    same = {
        "dataset_version": first.dataset_version,
        "recipe_version": first.recipe_version,
    }
    runs = [first]
    for index in range(1, 10):
        loss = {"kl_coef": 0.04} if index >= 5 else {}
        config = make_config(seed=index % 5, loss=loss)
        runs.append(make_run(team, f"run-{index}", config=config, **same))
    for run in runs:
        make_history(run)
    return runs


def make_history(run: Run) -> None:
    """A random walk of its own, totals that rise, and other metrics beside them."""
    others = [f"metric/{i}" for i in range(NUM_METRICS - len(NAMES))]
    run.metric_names = [*NAMES, *others]
    run.last_step, run.seq, run.attempt = NUM_STEPS, NUM_STEPS, 1
    run.save()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_step (run_id, step, epoch, seq, time, values) "
            "SELECT %s, s, 1, s, now() + s * interval '2 seconds', "
            "ARRAY[sin(s / 5e4 + %s) + random() / 5, s * 1000.0, s * 16.0] "
            "|| (SELECT array_agg(random() + k) FROM generate_series(1, %s) k) "
            "FROM generate_series(1, %s) s",
            [run.pk, run.pk / 50, len(others), NUM_STEPS],
        )
        cursor.execute("ANALYZE runs_step")
    # As ingest keeps them.
    build_rollups(run.pk, first_step=1, last_step=NUM_STEPS)
    make_summaries(run.pk)


def test_ten_runs_are_compared(team, alice_client):
    runs = make_sets(team)
    ids = ",".join(str(run.pk) for run in runs)
    rows = []
    for name, query in VIEWS.items():
        asked = {"runs": ids, **query}
        for path in ("compare/figure.json", "compare/charts.json", "compare"):
            address = f"/{team.slug}/{path}"
            answer = alice_client.get(address, asked)
            if answer.status_code == 404:  # of a version that has none
                continue
            assert answer.status_code == 200
            taken = [time_first(alice_client, address, asked) for _ in range(7)]
            size = f"{len(answer.content) / 1e3:.0f} kB"
            median = f"{statistics.median(taken) * 1000:.0f} ms"
            rows.append(
                [f"{name}, {path}", median, f"{min(taken) * 1000:.0f} ms", size]
            )
    answer = json.loads(
        alice_client.get(f"/{team.slug}/compare/figure.json", {"runs": ids}).content
    )
    say("\n" + heading("pytest", packages=("django", "psycopg", "numpy")))
    title = f"10 runs × {NUM_STEPS:,} steps × {NUM_METRICS} metrics, first answer"
    say(table((title, "median of 7", "fastest", "unpacked"), rows))
    assert all(len(trace["x"]) <= 1_000 for trace in answer["data"])


def time_first(client: Client, address: str, asked: dict[str, str]) -> float:
    """Nothing of the runs is kept in the process: each answer is a first one."""
    read_means_once.cache_clear()
    begun = time.perf_counter()
    client.get(address, asked)
    return time.perf_counter() - begun
