"""Columns to choose, sorting by them, and groups over them."""

import re
from urllib.parse import parse_qs, urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.runs.models import Run
from dashboard.runs.table.columns import (
    default_columns,
    find_column,
    read_columns,
    write_columns,
)
from tests.dashboard.runs.table.rows import make_runs

pytestmark = pytest.mark.django_db
RATE = "config.optim.learning_rate"
PLACE = "no worker accepts runs"


@pytest.fixture
def runs(team, alice) -> dict[str, Run]:
    return make_runs(team, alice)


def read_table(client: Client, **parameters: str | list[str]) -> list[list[str]]:
    """The cells' texts, header first, without what is for tools alone."""
    query = urlencode(parameters, doseq=True)
    page = client.get(f"/alpha/runs/?{query}").text
    rows = re.findall(r"<tr role=\"row\".*?</tr>", page, re.DOTALL)
    return [_cells(row) for row in rows]


def _cells(row: str) -> list[str]:
    cells = re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.DOTALL)
    hidden = re.compile(r'<span class="visually-hidden">.*?</span>', re.DOTALL)
    texts = (re.sub(r"<[^>]*>", " ", hidden.sub("", cell)) for cell in cells)
    return [" ".join(text.split()) for text in texts]


def names(client: Client, sort: str) -> str:
    table = read_table(client, sort=sort)
    return " ".join(row[1].split()[0] for row in table[1:])


def test_chosen_columns_are_shown_in_their_order(alice_client, runs):
    cols = f"reward/mean.mean,state,{RATE},reward/mean.min,config.rules.answer.weight"

    table = read_table(alice_client, cols=cols, sort="name")

    assert table[0][2:] == [
        "Reward mean",
        "State",
        "optim.learning_rate",
        "Reward min",
        "rules.answer.weight",
    ]
    assert table[1][2:] == ["0.5", "finished 100/100", "1e-6", "0.1", "1"]
    assert table[3][2:] == ["–", f"queued {PLACE}", "1e-5", "–", "1"]
    assert table[4][2:] == ["0.25", "failed 0/100", "3e-5", "0", "2"]


def test_tags_notes_and_sweep_are_columns(alice_client, runs):
    table = read_table(alice_client, cols="tags,notes,sweep", sort="name")

    assert table[1][2:] == ["baseline, long run", "–", "–"]
    assert table[3][2:] == ["–", "Looks odd, see #3", "rates"]


def test_runs_are_sorted_by_any_column_and_those_without_a_value_come_last(
    alice_client, runs
):
    expected = {
        RATE: "amber brave calm deft",
        f"-{RATE}": "deft calm brave amber",
        "-reward/mean.last": "deft amber brave calm",
        "reward/mean.min": "deft amber brave calm",
        "-reward/mean.mean": "brave amber deft calm",
        "config.rollout.temperature": "deft brave amber calm",
        "-duration": "amber brave deft calm",
        "entropy.best": "brave calm deft amber",  # none: at work, then queued, first
    }

    assert {sort: names(alice_client, sort) for sort in expected} == expected


def test_columns_round_trip():
    odd = ["state", 'a,"b".last', "config.rules.x.weight"]

    columns = [column for key in odd if (column := find_column(key))]

    assert read_columns(write_columns(columns)) == tuple(columns)
    assert write_columns(default_columns()) == ""
    assert read_columns("") == default_columns()
    assert read_columns("nothing,name") == default_columns()
    assert [c.key for c in read_columns("last,state,state")] == [
        "reward/mean.last",
        "state",
    ]


def test_groups_have_a_mean_and_a_best_with_their_n(alice_client, runs):
    cols = f"{RATE},reward/mean.last,entropy.max,state"

    table = read_table(alice_client, by="owner", cols=cols)

    assert [row[0] for row in table[1:]] == ["owner alice 3 runs", "owner none 1 run"]
    assert table[1][1:] == [
        "3 values",
        "0.5 best 0.6, n 2",
        "2 2 to 2, n 1",
        "",
    ]
    assert table[2][1:] == ["3e-5", "0.8 best 0.8, n 1", "n 0", ""]


def test_runs_are_grouped_by(alice_client, runs):
    rates = ("1e-6", "3e-6", "1e-5", "3e-5")
    expected = {
        "tag": ["tag baseline 2", "tag long run 1", "tag none 2"],
        RATE: [f"optim.learning_rate {rate} 1" for rate in rates],
        "dataset": ["dataset sums 3", "dataset words 1"],
        "model": ["model Qwen 1", "model model 3"],
        "reward": ["reward right answer 4"],
        "sweep": ["sweep rates 2", "sweep none 2"],
        "sweep,config.rules.answer.weight": [
            "sweep rates rules.answer.weight 1 2",
            "sweep none rules.answer.weight 1 1",
            "sweep none rules.answer.weight 2 1",
        ],
        "config.rollout.temperature": [
            "rollout.temperature 1 3",
            "rollout.temperature none 1",
        ],
    }

    def groups(by: str) -> list[str]:
        rows = read_table(alice_client, by=by)[1:]
        return [row[0].removesuffix("s").removesuffix(" run") for row in rows]

    assert {by: groups(by) for by in expected} == expected


def test_groups_are_sorted_by_their_size_or_a_mean(alice_client, runs):
    by_size = read_table(alice_client, by="tag", sort="-num")
    by_mean = read_table(alice_client, by="state", sort="-reward/mean.last")

    assert by_size[-1][0].startswith("tag long run")
    assert [row[0].split()[1] for row in by_mean[1:]] == [
        "failed",
        "finished",
        "running",
        "queued",
    ]


def test_a_group_expands_and_links_to_its_runs(alice_client, runs):
    page = alice_client.get(f"/alpha/runs/?by={RATE}&q=-state:queued").text
    group = re.findall(r'href="([^"]*)" aria-expanded="false"', page)[0]
    alone = re.findall(r'<a class="group-count[^"]*" href="([^"]*)"', page)[0]

    unfolded = alice_client.get("/alpha/runs/" + group.replace("&amp;", "&")).text
    query = alone.replace("&amp;", "&").removeprefix("?")

    assert 'aria-expanded="true"' in unfolded
    assert re.findall(r'name="runs" value="(\d+)"', unfolded) == [str(runs["amber"].pk)]
    assert parse_qs(query)["q"] == [f"(-state:queued) {RATE}:1e-6"]
    listed = alice_client.get(f"/alpha/runs/?{query}").text
    assert re.findall(r'name="runs" value="(\d+)"', listed) == [str(runs["amber"].pk)]


def test_a_group_without_a_value_links_to_its_runs(alice_client, runs):
    for by in ("tag", "owner", "sweep", "config.rollout.temperature"):
        page = alice_client.get(f"/alpha/runs/?by={by}&open=%5Bnull%5D").text
        alone = re.findall(
            r'<a class="group-count[^"]*" href="\?([^"]*none[^"]*)"', page
        )[0]
        unfolded = set(re.findall(r'name="runs" value="(\d+)"', page))

        listed = alice_client.get("/alpha/runs/?" + alone.replace("&amp;", "&")).text

        found = set(re.findall(r'name="runs" value="(\d+)"', listed))
        assert unfolded == found != set(), by


def test_an_unknown_group_key_is_shown(alice_client, runs):
    page = alice_client.get("/alpha/runs/?by=colour").text

    assert "Unknown key colour" in page


def test_groups_cost_no_more_queries_when_there_are_more(alice_client, runs):
    address = f"/alpha/runs/?by={RATE},state&cols={RATE},reward/mean.last,kl/mean.max"
    alice_client.get(address)

    with CaptureQueriesContext(connection) as queries:
        alice_client.get(address)

    # As for a page of runs, less their metrics and the queue, and the groups counted.
    assert len(queries) == 11


def test_chosen_columns_are_refreshed(alice_client, runs):
    brave = runs["brave"]
    brave.metric_summaries.filter(name="reward/mean").update(last=0.45, high=0.95)
    address = (
        f"live.json?ids={brave.pk}&cols=reward/mean.max,state,{RATE}&q=state:running"
    )

    answer = alice_client.get(f"/alpha/runs/{address}").json()

    assert answer["total"] == 1
    assert answer["rows"][str(brave.pk)]["cells"] == {"reward/mean.max": "0.95"}
    assert alice_client.get("/alpha/runs/live.json?q=x:").status_code == 400


def test_an_error_in_the_query_is_shown_at_its_place(alice_client, runs):
    page = alice_client.get("/alpha/runs/?q=name~a+state:runing").text

    assert "&#x27;runing&#x27;" in page
    assert "name~a state:<mark>runing</mark></code>" in page
    assert 'name="runs"' not in page


def test_keys_and_values_are_suggested(alice_client, runs):
    known = alice_client.get("/alpha/runs/suggest.json").json()

    def values(key: str) -> list[str]:
        found: list[str] = alice_client.get(
            f"/alpha/runs/suggest.json?key={key}"
        ).json()["values"]
        return found

    differing = [one["key"] for one in known["settings"] if one["num_values"] > 1]
    assert RATE in differing
    assert known["settings"][0]["key"] in differing
    offered = {one["metric"]: (one["title"], one["stats"]) for one in known["metrics"]}
    assert offered == offered | {
        "reward/mean": ("Reward (mean)", ["last", "best", "min", "max", "mean"]),
        "entropy": ("Entropy", ["last", "min", "max", "mean"]),
    }
    assert values("tag") == ["baseline", '"long run"']
    assert values("owner") == ["alice"]
    assert sorted(values(RATE)) == ["1e-5", "1e-6", "3e-5", "3e-6"]
    assert values("nothing") == []


def test_suggestions_are_limited_to_the_team(charlie_client, runs):
    known = charlie_client.get("/other/runs/suggest.json").json()

    assert known["settings"] == known["metrics"] == []
    assert charlie_client.get("/other/runs/suggest.json?key=tag").json()["values"] == []
