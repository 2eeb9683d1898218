"""Rescoring a long run, timed: `pytest -m load tests/bench/bench_rescoring.py -s`.

1,000 steps × 128 prompts × 8 completions with their texts: choosing of them, scoring
48 steps of them, and the page of a result of 200,000.
"""

from __future__ import annotations

import time

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.rescoring.models import RescoredStep, Rescoring
from dashboard.rescoring.selection import select_steps
from dashboard.rescoring.services import start_rescoring
from dashboard.rescoring.summary import summarize
from dashboard.rescoring.work import claim_next, work_on
from tests.bench.bench_curves import best_seconds
from tests.bench.bench_prompts import make_prompts, store
from tests.bench.machine import heading, say, table
from trainer.rewards.spec import Recipe

pytestmark = pytest.mark.load
NUM_SCORED, NUM_SHOWN = 48, 195  # steps
RULES = [
    {"name": "answer", "kind": "exact_answer", "weight": 1.0},
    {"name": "number", "kind": "numeric_answer", "weight": 1.0},
    {"name": "format", "kind": "format_tags", "weight": 0.2},
    {"name": "short", "kind": "length", "params": {"maximum": 700, "soft_edge": 200}},
]


def test_a_run_of_a_million_completions(team: Team, alice_client: Client) -> None:
    run = make_prompts(team, num_steps=1_000)
    store(run, num_steps=1_000, num_groups=128, with_texts=True)
    choosing = best_seconds(lambda: select_steps(run, None, None, 8), times=5)
    rescoring = start_rescoring(
        team=team,
        user=None,
        run=run,
        selection=select_steps(run, 1, NUM_SCORED, 1),
        recipe=Recipe.model_validate({"rules": RULES}),
    )
    begin = time.perf_counter()
    claim = claim_next("bench")
    assert claim is not None
    work_on(claim, is_shutting_down=lambda: False, beats=False)
    seconds = time.perf_counter() - begin
    rescoring.refresh_from_db()
    assert rescoring.state == "finished", rescoring.error
    fill(rescoring)
    address = f"/alpha/rescorings/{rescoring.pk}/"
    assert alice_client.get(address).status_code == 200
    shown = best_seconds(lambda: alice_client.get(address), times=5)
    summed = best_seconds(lambda: summarize(rescoring), times=3)

    say("\n" + heading("pytest", packages=("django", "psycopg", "numpy")))
    say(
        table(
            ("what", "measured"),
            [
                ["steps of 1,024,000 stored completions chosen", ms(choosing)],
                [
                    "completions scored a second, 4 rules, texts of 800 characters",
                    f"{rescoring.num_done / seconds:,.0f}",
                ],
                ["result page of 199,680 completions", ms(shown)],
                ["its summary, once at the end", ms(summed)],
            ],
        )
    )


def fill(rescoring: Rescoring) -> None:
    """Copies of the scored steps, up to as many as are scored at once."""
    scored = list(rescoring.scored.order_by("step"))
    for step in range(NUM_SCORED + 1, NUM_SHOWN + 1):
        copy = scored[step % NUM_SCORED]
        copy.pk, copy.step = None, step
        copy.save(force_insert=True)
    assert RescoredStep.objects.count() == NUM_SHOWN
    rescoring.result = summarize(rescoring)
    rescoring.save()


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
