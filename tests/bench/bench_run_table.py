"""Lists of 10,000 and of 1,000 runs, timed: `pytest -m load -s` of this file.

Runs of 40 metrics each, with whole configs. First paint is what Chromium says of it,
with nothing attached; the server's part is the whole page, as the web process makes it,
the median of five answers.
"""

import random
import statistics
import time
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.sync_api import Playwright

from dashboard.accounts.models import Team, User
from dashboard.runs.models import MetricSummary, Run, RunAttempt, RunEvent, Sweep
from tests.bench.machine import heading, say, table
from tests.bench.undisturbed import undisturbed
from tests.dashboard.costs.factories import H100, set_price
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)

pytestmark = [pytest.mark.load, pytest.mark.django_db(transaction=True)]
NUM_RUNS = 10_000
METRICS = ["reward/mean", "kl/mean", "entropy", "loss", "eval/heldout/mean"] + [
    f"part/metric_{n:02d}" for n in range(35)
]
TURNS = 5
SETTLE_SECONDS = 6.0
PAINT = """[
    performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
    performance.getEntriesByType('navigation')[0].responseEnd,
    document.querySelectorAll('tr[data-run]').length]"""
RATE = "config.optim.learning_rate"
WIDE = f"state,{RATE},reward/mean.last,reward/mean.best,kl/mean.mean,entropy.max"

ASKED = {
    "newest first": {"view": ""},
    "the last page": {"page": "200"},
    "free text": {"q": "run-77"},
    "state and tag": {"q": "state:finished tag:baseline"},
    "a metric above": {"q": "reward/mean.last > 0.9"},
    "a setting at most": {"q": f"{RATE} <= 1e-5"},
    "a setting, a metric and not a tag": {
        "q": f"{RATE}:1e-5 reward/mean.last > 0.5 -tag:baseline"
    },
    "a rule's weight": {"q": "config.rules.answer.weight:1 or name:none"},
    "by the best reward": {"sort": "-reward/mean.best"},
    "by a mean, of those above": {"sort": "-kl/mean.mean", "q": "entropy.max > 0.5"},
    "by a setting": {"sort": f"-{RATE}"},
    "six columns, by one": {"cols": WIDE, "sort": "-entropy.max"},
    "by cost": {"cols": "cost", "sort": "-cost"},
    "grouped by a setting": {"by": RATE, "cols": WIDE},
    "grouped by two settings, one unfolded": {
        "by": f"{RATE},config.seed",
        "cols": WIDE,
        "open": '["0.00001","3"]',
    },
    "grouped by tag": {"by": "tag"},
}
PAINTED = ("newest first", "six columns, by one", "grouped by a setting")


@pytest.fixture
def runs(team, alice, request) -> int:
    begun = time.perf_counter()
    num = getattr(request, "param", NUM_RUNS)
    make_runs(team, alice, num)
    with connection.cursor() as cursor:
        # As autovacuum does soon after.
        cursor.execute("VACUUM ANALYZE runs_run")
        cursor.execute("VACUUM ANALYZE runs_metricsummary")
        cursor.execute("VACUUM ANALYZE runs_epoch")
    say(f"\n{num:,} runs made in {time.perf_counter() - begun:.0f} s")
    return num


def make_runs(team: Team, owner: User, num: int) -> None:
    draw = random.Random(0)
    dataset, recipe = make_dataset(team), make_recipe(team)
    first = make_run(team, "run-0", dataset=dataset, recipe=recipe, owner=owner)
    group = Sweep.objects.create(team=team, name="sweep")
    configs = [
        make_config(
            optim={"learning_rate": rate}, data={"rows": "rows.jsonl"}, seed=seed
        )
        for rate in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4)
        for seed in range(10)
    ]
    now = timezone.now()
    for start in range(0, num, 1_000):
        made = Run.objects.bulk_create(
            Run(
                team=team,
                name=f"run-{number}",
                owner=owner,
                config=draw.choice(configs),
                model_label=f"model-{number % 5}",
                dataset_version=dataset,
                recipe_version=recipe,
                sweep=group if number % 10 == 0 else None,
                num_steps=1_000,
                last_step=1_000,
                state="finished",
                tags=["baseline"] if number % 7 == 0 else [],
                metric_names=METRICS,
                summary={"last": dict.fromkeys(METRICS, 0.123456789), "best": {}},
                started_at=now - timedelta(hours=number % 500),
                finished_at=now + timedelta(hours=1),
            )
            for number in range(max(start, 1), start + 1_000)
        )
        MetricSummary.objects.bulk_create(
            _summary(run, name, draw.random()) for run in made for name in METRICS
        )
        _make_attempts(made)
    first.delete()
    set_price(team, 2.5)
    _make_steps(made[-50:])


def _make_attempts(runs: list[Run]) -> None:
    """Two each, of an hour on two GPUs, with the events that tell so."""
    now = timezone.now()
    pairs = [(run, number) for run in runs for number in (1, 2)]
    RunAttempt.objects.bulk_create(
        RunAttempt(
            run=run,
            number=number,
            worker="w",
            claimed_at=now - timedelta(hours=3 - number),
            ended_at=now - timedelta(hours=2 - number),
        )
        for run, number in pairs
    )
    RunEvent.objects.bulk_create(
        RunEvent(
            run=run,
            seq=number,
            attempt=number,
            line=1,
            type="run_started" if number == 1 else "run_resumed",
            step=0,
            time=now,
            body={"device": f"2 × {H100}"},
        )
        for run, number in pairs
    )


def _make_steps(runs: list[Run]) -> None:
    """Of the runs on the first page: their rows draw the reward."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_step (run_id, step, epoch, seq, time, values) "
            "SELECT run, s, 1, s, now(), "
            "(SELECT array_agg(random() + k) FROM generate_series(1, %s) k) "
            "FROM unnest(%s::bigint[]) run, generate_series(1, 1000) s",
            [len(METRICS), [run.pk for run in runs]],
        )
        cursor.execute("ANALYZE runs_step")


def _summary(run: Run, name: str, value: float) -> MetricSummary:
    return MetricSummary(
        run=run,
        name=name,
        last=value,
        last_step=1_000,
        low=value / 2,
        low_step=1,
        high=value * 1.1,
        high_step=900,
        total=value * 900,
        num=1_000,
    )


def test_a_list_of_ten_thousand_runs(
    runs, team, alice, alice_client, live_app, playwright
):
    answered = [[name, *_answered(alice_client, q)] for name, q in ASKED.items()]
    say("\n" + heading("pytest", packages=("django", "psycopg", "playwright")))
    columns = ("the server's part", "median", "fastest", "SQL", "longest query")
    say(table(columns, answered))
    painted = [
        [name, *_painted(playwright, alice, live_app, _path(ASKED[name]))]
        for name in PAINTED
    ]
    shown = (f"{runs:,} runs × {len(METRICS)} metrics", "first paint", "fastest")
    say(table((*shown, "HTML there"), painted))


@pytest.mark.parametrize("runs", [1_000], indirect=True)
def test_a_list_of_a_thousand_runs(runs, alice_client):
    """Every way to list them but the last page, as often as each other."""
    asked = [query for name, query in ASKED.items() if name != "the last page"]
    for query in asked:
        _ask(alice_client, query)
    taken = sorted(_ask(alice_client, query) for _ in range(20) for query in asked)
    p50, p95 = (taken[round(len(taken) * part)] for part in (0.5, 0.95))

    shown = f"{len(taken)} lists of {runs:,} runs, in {len(asked)} ways"
    say(f"\n{shown}: p50 {p50:,.0f} ms, p95 {p95:,.0f} ms")


def _path(query: dict[str, str]) -> str:
    # As Chromium writes it in turn, which is what a page is found by.
    return f"/alpha/runs/?{urlencode(query, safe='/,:-')}"


def _painted(playwright: Playwright, user: User, app: str, path: str) -> list[str]:
    """Of a fresh profile each: nothing is in its cache."""
    turns = [_paint(playwright, user, app + path) for _ in range(TURNS + 1)][1:]
    paints, ends = ([turn[i] for turn in turns] for i in (0, 1))
    shown = (statistics.median(paints), min(paints), statistics.median(ends))
    return [f"{milliseconds:,.0f} ms" for milliseconds in shown]


def _paint(playwright: Playwright, user: User, url: str) -> tuple[float, float]:
    with undisturbed(playwright) as chromium:
        chromium.sign_in(user, url.partition("/alpha")[0])
        chromium.open(url)
        time.sleep(SETTLE_SECONDS)
        found = chromium.read(url, PAINT)
    assert found, f"{url} was not open after {SETTLE_SECONDS:g} s"
    ((paint, end, num_rows),) = found
    assert paint is not None, f"nothing on screen within {SETTLE_SECONDS:g} s"
    assert num_rows > 0 or "by=" in url
    return paint, end


def _answered(client: Client, query: dict[str, str]) -> list[str]:
    _ask(client, query)
    taken = [_ask(client, query) for _ in range(TURNS)]
    with CaptureQueriesContext(connection) as queries:
        _ask(client, query)
    spent = [float(query["time"]) * 1000 for query in queries.captured_queries]
    shown = (statistics.median(taken), min(taken), sum(spent), max(spent))
    return [f"{milliseconds:,.0f} ms" for milliseconds in shown]


def _ask(client: Client, query: dict[str, str]) -> float:
    begun = time.perf_counter()
    answer = client.get("/alpha/runs/", query)
    taken = (time.perf_counter() - begun) * 1000
    assert answer.status_code == 200
    return taken
