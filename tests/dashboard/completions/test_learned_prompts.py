"""A prompt's class and numbers, by hand-computed cases."""

import math
import re

import numpy as np
import pytest

from dashboard.completions.pass_rates import KINDS, NONE, sort, tally
from dashboard.completions.prompt_visits import VISIT, Visits
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run, store_dataset
from tests.dashboard.completions.prompts import (
    MAPPING,
    ROWS,
    address,
    listed,
    make,
    visit,
)
from tests.page_client import words
from trainer.rewards.scoring import Correctness


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    version = store_dataset(shared_team, ROWS, mapping=MAPPING)
    return make_run(shared_team, dataset_version=version)


def visits_of(*counts: tuple[int, int], prompt: int = 0) -> Visits:
    """Right and scored completions at the steps 10, 20, 30 …"""
    rows = [
        (prompt, 10 * at, 4, scored, right, 0.5, 0.1)
        for at, (right, scored) in enumerate(counts, start=1)
    ]
    return np.array(rows, VISIT)


def right(*counts: int) -> list[tuple[int, int]]:
    return [(count, 4) for count in counts]


@pytest.mark.parametrize(
    ("counts", "num_last", "kind", "solved_at", "forgotten_at"),
    [
        (right(0, 0, 0), 3, "never", NONE, NONE),
        (right(0, 1, 4), 3, "solved", 20, NONE),
        (right(1), 3, "solved", 10, NONE),
        (right(0, 4, 4), 2, "always", 20, NONE),
        (right(0, 4, 4), 3, "solved", 20, NONE),
        (right(0, 1, 0, 0, 0), 3, "forgotten", 20, 30),
        (right(0, 1, 0, 2, 0, 0, 0), 3, "forgotten", 20, 50),
        # Wrong of late, but not yet at all of the last three.
        (right(0, 1, 0, 0), 3, "oscillating", 20, NONE),
        (right(0, 1, 0, 0), 2, "forgotten", 20, 30),
        (right(4, 0), 3, "oscillating", 10, NONE),
        (right(4, 0), 1, "forgotten", 10, 20),
        (right(1, 0, 1), 1, "solved", 10, NONE),
        # What was wrong before the last visits is made good by them.
        (right(1, 0, 2, 4, 4), 3, "solved", 10, NONE),
        (right(1, 0, 2, 4, 4), 4, "oscillating", 10, NONE),
        # Wrong among the last visits, but before the first right one.
        (right(0, 0, 0, 1), 3, "solved", 40, NONE),
        # What could not be scored is no visit, wherever it lies.
        ([(0, 0), (2, 4), (0, 0), (3, 4), (0, 0)], 1, "solved", 20, NONE),
        ([(1, 4), (0, 0), (0, 4), (0, 0)], 1, "forgotten", 10, 30),
        ([(0, 0), (0, 0)], 3, "unscored", NONE, NONE),
        ([(0, 0), (0, 1)], 3, "never", NONE, NONE),
    ],
)
def test_a_prompts_class_and_steps(counts, num_last, kind, solved_at, forgotten_at):
    (found,) = tally(visits_of(*counts), num_last=num_last)

    assert KINDS[found["kind"]] == kind
    assert (found["solved_at"], found["forgotten_at"]) == (solved_at, forgotten_at)


@pytest.mark.parametrize(
    ("counts", "num_last", "now", "change"),
    [
        (right(0, 0, 1, 2, 4, 4), 3, (10, 12), 10 / 12 - 1 / 12),
        (right(0, 0, 1, 2, 4, 4), 1, (4, 4), 1.0),
        # Two windows of three would overlap, so they are of one visit each.
        (right(4, 2, 1), 3, (7, 12), 1 / 4 - 4 / 4),
        (right(4, 3, 2, 1, 0), 3, (3, 12), 1 / 8 - 7 / 8),
        (right(3), 3, (3, 4), math.nan),
        # By completions, not by visits: 3 of 5 now, 1 of 6 at first.
        ([(1, 2), (0, 4), (0, 0), (0, 1), (3, 4)], 2, (3, 5), 3 / 5 - 1 / 6),
        ([(0, 0)], 3, (0, 0), math.nan),
    ],
)
def test_pass_rate_now_and_its_change(counts, num_last, now, change):
    (found,) = tally(visits_of(*counts), num_last=num_last)

    assert (found["num_right"], found["num_scored"]) == now
    assert found["change"] == pytest.approx(change, nan_ok=True)


def test_prompts_side_by_side_do_not_mix():
    several = [
        visits_of(*right(0, 0), prompt=2),
        visits_of((0, 0), prompt=3),
        visits_of(*right(4, 0, 0, 0), prompt=5),
        visits_of(*right(0, 2), prompt=9),
    ]

    found = tally(np.concatenate(several), num_last=3)

    assert found["prompt"].tolist() == [2, 3, 5, 9]
    kinds = [KINDS[kind] for kind in found["kind"]]
    assert kinds == ["never", "unscored", "forgotten", "solved"]
    assert found["solved_at"].tolist() == [NONE, NONE, 10, 20]
    assert found["forgotten_at"].tolist() == [NONE, NONE, 20, NONE]
    assert found["num_seen"].tolist() == [2, 1, 4, 2]
    assert found["last_step"].tolist() == [20, 10, 40, 20]


def test_no_visits_are_no_tallies():
    assert len(tally(visits_of(), num_last=3)) == 0


def test_prompts_without_a_value_are_sorted_last():
    several = [
        visits_of(*right(0, 0, 0), prompt=2),
        visits_of((0, 0), prompt=3),
        visits_of(*right(0, 2, 4, 4), prompt=5),
        visits_of(*right(1, 1), prompt=9),
    ]
    tallies = tally(np.concatenate(several), num_last=1)
    orders = {
        "pass": [2, 9, 5, 3],
        "-pass": [5, 9, 2, 3],
        "change": [2, 9, 5, 3],
        "-change": [5, 2, 9, 3],
        "solved": [9, 5, 2, 3],
        "-solved": [5, 9, 2, 3],
        "times": [3, 9, 2, 5],
        "-times": [5, 2, 9, 3],
        "prompt": [2, 3, 5, 9],
    }

    assert {by: sort(tallies, by)["prompt"].tolist() for by in orders} == orders


@pytest.fixture(scope="module")
def learned(run) -> Run:
    """Of each class but one: never, solved, forgotten, oscillating, unscored."""
    curves = [(0, 0, 0, 0), (0, 1, 2, 4), (3, 0, 0, 0), (2, 0, 1, 0)]
    for step in range(4):
        for prompt, counts in enumerate(curves):
            visit(run, step + 1, prompt, counts[step])
        make_group(run, step=step + 1, prompt_index=4, rewards=(None, None))
    return run


def test_the_url_filters_and_sorts(alice_client, learned):
    for query, wanted in {
        "which=never": [0],
        "which=solved": [1],
        "which=forgotten": [2],
        "which=oscillating": [3],
        "which=unscored": [4],
        "which=forgotten&last_step=2": [],
        "which=forgotten&last_step=2&visits=1": [2, 3],
        "sort=-pass": [1, 3, 0, 2, 4],
        "sort=-change": [1, 0, 3, 2, 4],
        "sort=solved": [2, 3, 1, 0, 4],
    }.items():
        assert listed(alice_client, learned, query) == wanted, query


def test_the_table_counts_classes_and_describes_each_prompt(alice_client, learned):
    page = words(alice_client.get(address(learned)))

    assert "5 of 30 prompts" in page
    for kind in ("never solved", "solved", "forgotten", "unstable", "not scored"):
        assert f"1 {kind}" in page
    assert "0 / 12 −37.5 points forgotten Prompt 2 forgotten from 2" in page
    assert "7 / 12 +62.5 points solved, not always Prompt 1 solved first at 2" in page
    assert "4 4 ×" in page


CLASSES = ("never", "solved", "forgotten", "oscillating")


def test_a_tile_keeps_the_rest_of_the_address(alice_client, learned):
    page = alice_client.get(address(learned, "visits=2&sort=-pass&page=1")).text

    links = set(re.findall(r'class="tile" href="([^"]*)"', page))
    # By their last two groups the fourth is forgotten or unstable.
    assert links
    assert links <= {
        f"?visits=2&amp;sort=-pass&amp;which={k}" for k in (*CLASSES, "unscored")
    }


def test_the_bars_of_the_histogram_lead_to_their_prompts(alice_client, learned):
    bars = alice_client.get(address(learned)).context["bars"]

    counted = {(bar["low"], bar["high"]): bar["num"] for bar in bars}
    assert sum(counted.values()) == 4  # one is not scored
    assert counted["0", "0"] == 2
    for (low, high), num in counted.items():
        query = f"which=mixed&low={low}&high={high}"
        assert len(listed(alice_client, learned, query)) == num, query
    chosen = alice_client.get(address(learned, "which=mixed&low=50&high=69.99"))
    assert [bar["low"] for bar in chosen.context["bars"] if bar["is_set"]] == [
        "50",
        "60",
    ]


def test_a_link_to_a_prompt_keeps_the_visits(alice_client, learned):
    page = alice_client.get(address(learned, "visits=2&last_step=3&which=all")).text

    path = f"/alpha/runs/{learned.pk}/prompts/2/"
    assert f'href="{path}?visits=2&amp;last_step=3"' in page


def test_each_curve_is_described_in_words(alice_client, learned):
    page = alice_client.get(address(learned)).text

    labels = re.findall(r'class="strip"[^>]*aria-label="([^"]*)"', page)
    # First, last, lowest, highest.
    assert [re.findall(r"(\d+)%", curve) for curve in labels] == [
        ["0", "0", "0", "0"],
        ["75", "0", "0", "75"],
        ["50", "0", "0", "50"],
        ["0", "100", "0", "100"],
        [],
    ]


def test_a_chat_is_shown_by_its_last_question(alice_client, team):
    chat = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "What is 1?"},
    ]
    version = store_dataset(
        team,
        [Row(prompt=chat, answer=None, columns={})],
        name="Chats",
        mapping={"prompt": "q", "answer": None, "columns": []},
    )
    run = make_run(team, dataset_version=version)
    visit(run, 1, 0, 4)

    (line,) = alice_client.get(address(run)).context["lines"]
    assert line.text == "What is 1?"


def test_a_class_becomes_a_dataset(alice_client, learned):
    assert make(alice_client, learned, "which=forgotten").status_code == 302

    made = DatasetVersion.objects.get(dataset__name="Hard")
    assert [row.prompt for row in made.rows.all()] == ["What is 2?"]
    assert made.source["how"].startswith("forgotten in calm")
    assert made.source["query"].startswith("which=forgotten&visits=3")


def test_superseded_groups_are_not_counted(alice_client, learned):
    """Prompt 2 was right at step 1 alone, which is trained again."""
    learned.groups.filter(step=1).update(superseded_by=2)
    visit(learned, 1, 2, 0, attempt=2)

    assert listed(alice_client, learned, "which=never") == [0, 2]
    assert listed(alice_client, learned, "which=forgotten") == []


def test_a_recipe_without_a_highest_reward_lists_its_prompts(
    alice_client, learned, monkeypatch
):
    monkeypatch.setattr(
        "dashboard.completions.rewards.correctness_of", lambda *_, **__: Correctness()
    )

    page = alice_client.get(address(learned))

    assert "no highest value" in words(page)
    assert [line.kind for line in page.context["lines"]] == ["unscored"] * 5


def test_many_prompts_cost_few_queries(
    alice_client, learned, django_assert_num_queries
):
    with django_assert_num_queries(12):
        alice_client.get(address(learned))
    for prompt in range(5, 20):
        visit(learned, 1, prompt, 1)
    with django_assert_num_queries(12):
        alice_client.get(address(learned))
