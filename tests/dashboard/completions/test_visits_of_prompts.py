"""A run's visits: from rollups, from groups, and from a slow count, they are one."""

import random
from typing import Any

import numpy as np
import pytest
from django.db import connection

from dashboard.completions.flags import RIGHT
from dashboard.completions.models import StepRollup
from dashboard.completions.prompt_visits import Span, holes_in, read_visits
from dashboard.completions.search.columns import compute_kinds, read_columns
from dashboard.completions.signals.composition import read_compositions
from dashboard.completions.signals.records import read_groups
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_group,
    make_run,
)
from tests.dashboard.completions.rollups import make_rollup

pytestmark = pytest.mark.django_db
REWARDS = (1.2, 1.0, 0.2, 0.0, None)
ALL = Span(first=1, last=12)


def roll_up_steps(run: Run, *steps: int, superseded_by: int | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT config::text FROM runs_run WHERE id = %s", [run.pk])
        compositions = read_compositions(cursor.fetchone()[0])
    for step in steps:
        groups = read_groups(run.pk, step=step, attempt=1)
        make_rollup(
            run,
            step,
            groups,
            composition=compositions.at(step),
            superseded_by=superseded_by,
        )


@pytest.fixture(params=["exact_answer", "tag_count"])
def run(team, request) -> Run:
    """Its format's weight fades, so that the highest reward does, too.

    The first rule compares with the answer, or does not.
    """
    fading = {"points": [{"step": 9, "weight": 0.0}]}
    first = {"name": "answer", "kind": request.param, "weight": 1.0}
    rules = [first, {**RULES[1], "schedule": fading}]
    return make_run(team, config=make_config(rules), rules=rules)


@pytest.fixture
def slow(run) -> list[tuple[Any, ...]]:
    """Twelve steps of five of twelve prompts, and what is to be found."""
    draw = random.Random(0)
    by_answer = run.config["reward"]["recipe"]["rules"][0]["kind"] == "exact_answer"
    wanted = []
    for step in range(1, 13):
        highest = 1.0 + 0.2 * max(0.0, 1 - (step - 1) / 8)
        for prompt in draw.sample(range(12), 5):
            rewards = tuple(draw.choice((highest, *REWARDS[1:])) for _ in range(3))
            group = make_group(run, step=step, prompt_index=prompt, rewards=rewards)
            scored = [reward for reward in rewards if reward is not None]
            least = 1.0 if by_answer else highest - 1e-9
            num_right = sum(reward >= least for reward in scored)
            wanted.append(
                (prompt, step, 3, len(scored), num_right, group.reward_mean or 0.0)
            )
    return sorted(wanted)


def found(run: Run, span: Span = ALL, **given: Any) -> list[tuple[Any, ...]]:
    visits = read_visits(run, span, **given)
    names = ["prompt", "step", "num_completions", "num_scored", "num_right"]
    # Rollups keep means in single precision.
    means = np.nan_to_num(visits["mean"]).tolist()
    rows = visits[names].tolist()
    return [
        (*row, pytest.approx(mean, rel=1e-6))
        for row, mean in zip(rows, means, strict=True)
    ]


@pytest.mark.parametrize("rolled", [[], [1, 2, 7, 8, 12], list(range(1, 13))])
def test_visits_are_those_of_a_slow_count(run, slow, rolled):
    roll_up_steps(run, *rolled)

    assert found(run) == slow
    assert found(run, prompt=3) == [row for row in slow if row[0] == 3]
    some = Span(first=3, last=11)
    assert found(run, some) == [row for row in slow if 3 <= row[1] <= 11]


def test_the_search_flags_every_correct_visit(run, slow):
    kinds = compute_kinds(run, read_columns(run.pk, first=1, last=12))

    assert np.count_nonzero(kinds & RIGHT) == sum(row[4] for row in slow)


def test_rollups_are_read_in_one_query(run, slow, django_assert_num_queries):
    roll_up_steps(run, *range(1, 13))

    with django_assert_num_queries(0):  # Django's: the one is psycopg's own
        read_visits(run, ALL)


def test_rollups_older_than_passes_are_counted_from_their_groups(run, slow):
    roll_up_steps(run, *range(1, 13))
    StepRollup.objects.filter(step__lte=6).update(passes=b"")

    assert found(run) == slow


def test_a_superseded_rollup_does_not_count(run, slow):
    roll_up_steps(run, *range(1, 13))
    run.groups.filter(step__gt=9).update(superseded_by=2)
    StepRollup.objects.filter(step__gt=7).update(superseded_by=2)

    assert found(run) == [row for row in slow if row[1] <= 9]


def test_without_a_known_rule_nothing_is_scored(run, slow):
    run.config["reward"]["recipe"]["rules"][0]["kind"] = "forgotten"
    run.save()
    roll_up_steps(run, 1, 2, 3)

    visits = read_visits(run, ALL)

    assert len(visits) == len(slow)
    assert not visits["num_scored"].any()
    assert not visits["num_right"].any()


@pytest.mark.parametrize(
    ("steps", "holes"),
    [
        ([3, 4, 8], [(1, 2), (5, 7), (9, 12)]),
        (list(range(1, 13)), []),
        ([], [(1, 12)]),
    ],
)
def test_holes_are_the_steps_between(steps, holes):
    assert holes_in(np.array(steps, np.int64), ALL) == holes
