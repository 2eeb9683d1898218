import gzip
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.signal_map import read_map
from dashboard.pages.groups import READERS
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import make_group as make_step_group

CHARTS = ["map", "rewards", "advantages", "rules", "anatomy"]


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    run = make_run(shared_team)
    for step in range(1, 6):
        groups = [make_step_group([1.0, 0.0], prompt_index=9 - step)]
        make_rollup(run, step, groups, seconds={"generate": 1.0, "step": 2.0})
    return run


def address(run: Run, chart: str, slug: str = "alpha") -> str:
    return reverse("run_signals", args=[slug, run.pk, chart])


def test_members_get_the_data_of_each_chart(bob_client, run):
    for chart in CHARTS:
        query = {"first_step": 2, "last_step": 4}
        answer = bob_client.get(address(run, chart), query)

        assert answer.status_code == 200
        found = answer.json()
        columns = found.get("columns", found.get("steps"))
        assert [column["first"] for column in columns] == [2, 3, 4], chart


def test_a_run_without_anything_answers_too(alice_client, team):
    empty = make_run(team, name="new")
    for chart in CHARTS:
        assert alice_client.get(address(empty, chart)).status_code == 200, chart


def test_the_maps_rows_follow_the_address(alice_client, run):
    answer = alice_client.get(address(run, "map"), {"rows": "first_seen"})

    assert [row["low"] for row in answer.json()["rows"]] == [8, 7, 6, 5, 4]


def test_a_bad_address_is_refused(alice_client, run):
    backwards = {"first_step": "5", "last_step": "4"}
    for query in ({"first_step": "x"}, backwards, {"rows": "colour"}):
        answer = alice_client.get(address(run, "map"), query)

        assert answer.status_code == 400
        assert answer.json()["errors"]


def test_an_unknown_chart_is_404(alice_client, run):
    assert alice_client.get(address(run, "weather")).status_code == 404


def test_viewers_of_a_run_share_an_answer_until_its_next_step(
    alice_client, bob_client, team
):
    run = make_run(team, name="live", state="running", lease_until=timezone.now())
    make_rollup(run, 1, [make_step_group([1.0, 0.0])])
    first = alice_client.get(address(run, "map")).json()

    with mock.patch.dict(READERS, {"map": mock.Mock(side_effect=AssertionError)}):
        assert bob_client.get(address(run, "map")).json() == first

    make_rollup(run, 2, [make_step_group([1.0, 0.0])])
    Run.objects.filter(pk=run.pk).update(last_step=2)
    assert len(bob_client.get(address(run, "map")).json()["steps"]) == 2


def test_responses_are_compressed_if_accepted(alice_client, run):
    plain = alice_client.get(address(run, "map"))
    packed = alice_client.get(
        address(run, "map"), headers={"Accept-Encoding": "gzip, br"}
    )

    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content


def test_runs_older_than_the_charts_are_filled_by_a_command(team, capsys):
    run = make_run(team)
    make_steps(run, {"time/step": [2.0, 3.0]})
    make_group(run, step=1, prompt_index=4)

    call_command("fill_rollups", run=run.pk)

    assert read_map(run, order="dataset")["cells"]["prompt"] == [4]
    assert StepRollup.objects.filter(run=run).count() == 2
    assert capsys.readouterr().out == f"Run {run.pk} (calm-otter-1): 2 steps.\n"
    with pytest.raises(CommandError, match="999999"):
        call_command("fill_rollups", run=999_999)
