"""A long run's signals, timed: `pytest -m load tests/bench/bench_signals.py -s`."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from django.db import connection
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from dashboard.samples.signals.records import GROUP
from dashboard.samples.signals.rollup import Rollup, roll_up
from dashboard.samples.signals.step_groups import StepGroup
from dashboard.training.copying import ROLLUP_COLUMNS, copy_rows, text_array
from tests.bench.bench_curves import best_seconds
from tests.bench.machine import heading, say, table
from tests.dashboard.samples.factories import make_run
from tests.dashboard.samples.rollups import WEIGHTED
from tests.dashboard.samples.step_groups import make_group

pytestmark = pytest.mark.load
NUM_STEPS = 100_000
NUM_PROMPTS = 7_473  # as many as GSM8K has
GZIP = {"HTTP_ACCEPT_ENCODING": "gzip"}  # as browsers ask
CHARTS = ("map", "rewards", "advantages", "rules", "anatomy")


@pytest.mark.parametrize(("num_groups", "group_size"), [(8, 8), (16, 16)])
def test_a_long_runs_signal_charts(
    team: Team, alice_client: Client, num_groups: int, group_size: int
) -> None:
    run = make_run(team, num_steps=NUM_STEPS)
    make_rollups(run, num_groups, group_size)
    rows = []
    for chart in CHARTS:
        address = f"/{team.slug}/runs/{run.id}/signals/{chart}.json"
        for query in ({}, {"first_step": 50_001, "last_step": 55_000}):
            seconds = best_seconds(
                lambda a=address, q=query: alice_client.get(a, q, **GZIP)
            )
            size = len(alice_client.get(address, query, **GZIP).content)
            what = "5 % of it" if query else f"{NUM_STEPS:,} steps"
            rows.append(
                [chart, what, f"{seconds * 1000:.0f} ms", f"{size / 1e3:.0f} kB"]
            )
    say("\n" + heading("pytest", packages=("django", "psycopg", "numpy")))
    head = (f"{num_groups} groups of {group_size}", "steps", "best of 7", "size")
    say(table(head, rows))


def make_rollups(run: Run, num_groups: int, group_size: int) -> None:
    """A hundred steps' rollups over and over, each with prompts of its own."""
    some = [make_rollup(num_groups, group_size, seed) for seed in range(100)]
    copy_rows("samples_steprollup", ROLLUP_COLUMNS, rows_of(run, some))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE samples_steprollup")


def make_rollup(num_groups: int, group_size: int, seed: int) -> Rollup:
    draw = random.Random(seed)
    groups = [
        make_scored_group(draw, group_size, share=i / num_groups)
        for i in range(num_groups)
    ]
    metrics = dict.fromkeys(
        ("time/generate", "time/score", "time/logprobs", "time/update", "time/sync"),
        1.0,
    )
    return roll_up(groups, {**metrics, "time/step": 6.0}, WEIGHTED, 1)


def make_scored_group(draw: random.Random, size: int, *, share: float) -> StepGroup:
    rules = [
        {"answer": float(draw.random() < share), "format": draw.choice((0, 0.5, 1))}
        for _ in range(size)
    ]
    return make_group([r["answer"] + 0.2 * r["format"] for r in rules], rules=rules)


def rows_of(run: Run, some: list[Rollup]) -> Iterator[tuple[object, ...]]:
    draw = np.random.default_rng(7)
    for step in range(1, NUM_STEPS + 1):
        rollup = some[step % len(some)]
        groups = np.frombuffer(rollup.groups, GROUP).copy()
        groups["step"] = step
        groups["prompt"] = draw.integers(0, NUM_PROMPTS, len(groups))
        yield (
            run.pk,
            step,
            1,
            groups.tobytes(),
            rollup.reward_quantiles,
            rollup.reward_histogram,
            rollup.advantage_quantiles,
            rollup.advantage_histogram,
            text_array(rollup.rule_names),
            rollup.rules,
            rollup.anatomy,
            rollup.passes,
            rollup.majorities,
        )
