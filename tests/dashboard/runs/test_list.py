import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.models import Run, RunAttempt, RunState
from tests.dashboard.completions.factories import make_steps
from tests.dashboard.runs.launching import (
    make_dataset,
    make_recipe,
    make_run,
    summarize,
)

# Session, user, membership with team, memberships of the menu, the filters' choices,
# counts of archived and trashed runs, saved views, number of runs, a page, metrics,
# curves of the reward.
PAGE_QUERIES = 12
# Who waits, workers, their runs, past paces: where one of the page waits for a worker.
QUEUE_QUERIES = 4


@pytest.fixture
def three_runs(team, alice, bob) -> dict[str, Run]:
    sums, words = make_dataset(team, "sums"), make_dataset(team, "words")
    recipe = make_recipe(team)
    end = timezone.now() + timedelta(minutes=1)  # a run ends after it was created
    common: dict[str, Any] = {"recipe": recipe, "started_at": end - timedelta(hours=2)}
    runs = {
        "amber": make_run(
            team,
            "amber-otter",
            dataset=sums,
            owner=alice,
            last_step=40,
            model_label="tiny",
            **common,
        ),
        "brave": make_run(
            team,
            "brave-lynx",
            dataset=words,
            owner=bob,
            state=RunState.FAILED,
            finished_at=end,
            **common,
        ),
        "calm": make_run(team, "calm-wren", dataset=sums, recipe=recipe, owner=bob),
    }
    summarize(runs["amber"], "reward/mean", last=0.5, high=0.75)
    summarize(runs["brave"], "reward/mean", last=0.25, high=0.9)
    return runs


def _names(client: Client, team: Team, query: str = "") -> list[str]:
    page = client.get(f"/{team.slug}/runs/{query}").text
    return re.findall(r"(?<=>)(?:amber-otter|brave-lynx|calm-wren)(?=</a>)", page)


def test_the_address_filters(alice_client, team, three_runs):
    amber, brave = three_runs["amber"], three_runs["brave"]
    expected = {
        # those at work, then the queue, then the newest
        "": ["amber-otter", "calm-wren", "brave-lynx"],
        "?state=failed": ["brave-lynx"],
        "?state=active": ["amber-otter", "calm-wren"],
        "?model=tiny": ["amber-otter"],
        "?q=OTTER": ["amber-otter"],
        "?q=words": ["brave-lynx"],
        "?q=nothing+like+it": [],
        "?q=otter%00": ["amber-otter"],
        "?state=queued&q=calm": ["calm-wren"],
        f"?owner={brave.owner_id}": ["calm-wren", "brave-lynx"],
        f"?dataset={brave.dataset_version.dataset_id}": ["brave-lynx"],
        f"?q=%23{amber.pk}": ["amber-otter"],
    }

    found = {query: _names(alice_client, team, query) for query in expected}

    assert found == expected


def test_the_address_sorts_and_runs_without_a_value_come_last(
    alice_client, team, three_runs
):
    expected = {
        "name": ["amber-otter", "brave-lynx", "calm-wren"],
        "-name": ["calm-wren", "brave-lynx", "amber-otter"],
        "last": ["brave-lynx", "amber-otter", "calm-wren"],
        "-last": ["amber-otter", "brave-lynx", "calm-wren"],
        "-best": ["brave-lynx", "amber-otter", "calm-wren"],
        "-progress": ["amber-otter", "calm-wren", "brave-lynx"],
        "dataset": ["calm-wren", "amber-otter", "brave-lynx"],
    }

    found = {sort: _names(alice_client, team, f"?sort={sort}") for sort in expected}

    assert found == expected


def test_invalid_parameters_are_ignored(alice_client, team, three_runs):
    for wrong in ("sort=password", "owner=me", f"dataset={'9' * 20}", "page=x"):
        assert len(_names(alice_client, team, f"?{wrong}")) == 3, wrong


def test_the_sorted_column_is_marked_and_reverses_on_a_second_click(
    alice_client, team, three_runs
):
    page = alice_client.get(f"/{team.slug}/runs/?sort=-last&state=active").text

    link = r'"descending"><a [^>]*href="\?sort=reward%2Fmean.last'
    assert re.search(link, page)
    assert "state=active" in page


def test_rewards_have_four_digits_and_progress_is_of_a_total(
    alice_client, team, three_runs
):
    page = alice_client.get(f"/{team.slug}/runs/").text

    assert ">0.5<" in page
    assert "40/100" in page


def test_a_run_takes_the_time_of_its_attempts(alice_client, team, three_runs):
    brave = three_runs["brave"]  # failed two hours after its start
    assert brave.started_at
    begins = brave.started_at, brave.started_at + timedelta(minutes=100)
    for number, (begin, minutes) in enumerate(zip(begins, (30, 20), strict=True), 1):
        RunAttempt.objects.create(
            run=brave,
            number=number,
            worker="w",
            claimed_at=begin,
            ended_at=begin + timedelta(minutes=minutes),
        )

    answer = alice_client.get(f"/{team.slug}/runs/?cols=duration")

    row = next(row for row in answer.context["rows"] if row.run == brave)
    [cell] = row.cells
    assert (cell.text, "1 h" in cell.title) == ("50 min 00 s", True)
    assert Run.objects.get(pk=brave.pk).took == timedelta(minutes=50)
    live = f"/{team.slug}/runs/live.json?cols=duration&ids={brave.pk}"
    row = alice_client.get(live).json()["rows"][str(brave.pk)]
    assert row["cells"]["duration"] == "50 min 00 s"
    filtered = alice_client.get(f"/{team.slug}/runs/?q=duration>1h")
    assert filtered.context["rows"] == []


def test_another_teams_runs_are_neither_listed_nor_refreshed(
    charlie_client, team, three_runs
):
    amber = three_runs["amber"]

    own = charlie_client.get(f"/other/runs/live.json?ids={amber.pk}").json()

    assert charlie_client.get(f"/{team.slug}/runs/").status_code == 404
    assert charlie_client.get(f"/{team.slug}/runs/live.json").status_code == 404
    assert own == {"total": 0, "rows": {}}


def test_rows_on_the_screen_are_refreshed_and_new_runs_counted(
    alice_client, team, three_runs
):
    amber = three_runs["amber"]
    Run.objects.filter(pk=amber.pk).update(last_step=41)

    answer = alice_client.get(
        f"/{team.slug}/runs/live.json?state=active&ids={amber.pk},x"
    ).json()

    assert answer["total"] == 2
    assert answer["rows"][str(amber.pk)]["done"] == "41/100"
    assert answer["rows"][str(amber.pk)]["cells"]["reward/mean.last"] == "0.5"


def test_an_empty_list_shows_what_a_first_run_needs(alice_client, team):
    before = alice_client.get(f"/{team.slug}/runs/").text
    make_dataset(team)
    after = alice_client.get(f"/{team.slug}/runs/").text

    assert re.findall(r'data-done="(\w+)"', before) == ["false"] * 3
    assert re.findall(r'data-done="(\w+)"', after) == ["true", "false", "false"]
    for place in ("run_new", "run_imports"):
        assert f'href="{reverse(place, args=[team.slug])}"' in after


def test_the_list_leads_to_the_queue_and_to_archived_runs_where_there_are_some(
    alice_client, team, three_runs
):
    brave = three_runs["brave"]
    before = alice_client.get(f"/{team.slug}/runs/").text
    Run.objects.filter(pk=brave.pk).update(archived_at=timezone.now())
    after = alice_client.get(f"/{team.slug}/runs/").text

    assert f'href="/{team.slug}/compute/"' in before
    assert "?q=archived" not in before
    assert "?q=archived" in after


def test_runs_at_work_come_first_unless_another_order_is_chosen(
    alice_client, team, three_runs
):
    Run.objects.filter(name="amber-otter").update(
        state=RunState.RUNNING, attempt=1, lease_until=timezone.now()
    )

    names = _names(alice_client, team)
    by_name = _names(alice_client, team, "?sort=-name")

    assert names == ["amber-otter", "calm-wren", "brave-lynx"]
    assert by_name == ["calm-wren", "brave-lynx", "amber-otter"]


def test_a_row_has_the_curve_of_its_reward_and_its_time_left(
    alice_client, team, three_runs
):
    amber = three_runs["amber"]
    make_steps(amber, {"loss": [9.0] * 40, "reward/mean": [i / 40 for i in range(40)]})
    summary = {"step_seconds": [2.0, 4.0], "last": {}, "best": {}}
    Run.objects.filter(pk=amber.pk).update(
        state=RunState.RUNNING, attempt=1, lease_until=timezone.now(), summary=summary
    )

    page = alice_client.get(f"/{team.slug}/runs/?curves=1")
    address = f"/{team.slug}/runs/live.json?ids={amber.pk}"
    live = alice_client.get(f"{address}&curves=1&cols=state").json()
    plain = alice_client.get(address).json()["rows"][str(amber.pk)]

    row = page.context["rows"][0]
    assert row.curve.steps[0] == 1
    assert row.curve.steps[-1] == 40
    assert row.curve.values[-1] == 39 / 40
    assert len(row.curve.steps) == 24
    assert row.left == "3 min 00 s left"  # 60 steps of 3 s
    assert page.context["curves"][0]["id"] == amber.pk
    assert live["rows"][str(amber.pk)]["curve"]["values"] == [
        pytest.approx(value, rel=1e-5) for value in row.curve.values
    ]
    closed = alice_client.get(f"/{team.slug}/runs/")
    assert "curves" not in closed.context
    assert "curve" not in plain
    assert plain["spark"]


def test_active_filters_are_chips_that_are_removed_one_by_one(
    alice_client, team, three_runs
):
    page = alice_client.get(f"/{team.slug}/runs/?state=failed&model=model&by=state")

    assert page.context["chips"] == [
        ("State: failed", "?model=model&by=state"),
        ("Model: model", "?state=failed&by=state"),
        ("Grouped by: state", "?state=failed&model=model"),
    ]


def test_filters_without_a_match_can_be_cleared(alice_client, team, three_runs):
    page = alice_client.get(f"/{team.slug}/runs/?q=zzz&sort=name").text

    assert "empty-state" in page
    assert 'href="?sort=name"' in page


@pytest.fixture
def many_runs(team, alice) -> None:
    dataset, recipe = make_dataset(team), make_recipe(team)
    first = make_run(team, "first", dataset=dataset, recipe=recipe, owner=alice)
    Run.objects.bulk_create(
        Run(
            team=team,
            name=f"run-{number}",
            owner=alice,
            config=first.config,
            model_label=f"model-{number % 5}",
            dataset_version=dataset,
            recipe_version=recipe,
            num_steps=100,
            last_step=2,
        )
        for number in range(119)
    )


def test_a_page_of_many_runs_costs_no_more_queries_and_keeps_the_filters(
    alice_client, team, many_runs
):
    address = f"/{team.slug}/runs/?sort=-last&q=run"
    alice_client.get(address)

    with CaptureQueriesContext(connection) as queries:
        page = alice_client.get(address).text

    assert "1–50 of 119" in page
    assert len(queries) == PAGE_QUERIES + QUEUE_QUERIES

    Run.objects.update(state=RunState.FINISHED)
    with CaptureQueriesContext(connection) as queries:
        page = alice_client.get(f"{address}&page=2").text

    assert "51–100 of 119" in page
    assert "page=3" in re.findall(r'href="[?]sort=-last&amp;q=run&amp;([^"]*)"', page)
    assert len(queries) == PAGE_QUERIES
