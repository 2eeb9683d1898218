"""Live and pinned: what a block shows, and that a pin outlives its runs."""

import math

import pytest

from cohort.lines import plain
from dashboard.accounts.models import Team
from dashboard.analysis.reports.document import Shown, show_report
from dashboard.analysis.reports.models import Report
from dashboard.runs.models import Run
from tests.dashboard.analysis.reports.stories import (
    make_measured_run,
    make_other_run,
    make_report,
    make_sampled_group,
)
from tests.dashboard.completions.factories import make_run

pytestmark = pytest.mark.django_db


def blocks_of(report: Report) -> list[Shown]:
    report = Report.objects.get(pk=report.pk)
    return [part for part in show_report(report) if isinstance(part, Shown)]


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_measured_run(shared_team)


@pytest.fixture(scope="module")
def report(shared_team, shared_alice, run) -> Report:
    make_sampled_group(run)
    other = make_other_run(shared_team)
    lines = [
        f"::chart runs={run.pk},{other.pk} metric=kl/mean",
        f"::group run={run.pk} step=40 prompt=3",
        f"::compare runs={run.pk},{other.pk} metric=reward/mean",
        f"::table runs={run.pk},{other.pk}",
    ]
    text = "\n".join([*(f"{line} pin" for line in lines), *lines])
    return make_report(shared_team, shared_alice, text)


def test_a_pinned_block_outlives_its_run(alice_client, report, run):
    before = blocks_of(report)
    number = run.pk
    run.delete()

    after = blocks_of(report)
    page = alice_client.get(f"/alpha/reports/{report.pk}/").text

    assert [shown.data for shown in after[:4]] == [shown.data for shown in before[:4]]
    assert all(shown.deleted_runs == ["calm-otter-1"] for shown in after[:4])
    assert "&lt;think&gt;3+1&lt;/think&gt; 4" in page
    assert f'href="/alpha/runs/{number}/' not in page
    for shown in after[4:]:
        [gone] = shown.data["gone"]
        assert gone.startswith(f"Run {number} ")


def test_a_pin_keeps_its_state_and_a_live_block_goes_on(report, run):
    run.summary["last"]["kl/mean"] = 0.9
    run.save()

    pinned, live = blocks_of(report)[3], blocks_of(report)[7]

    assert pinned.data["runs"][0]["values"][1] == 0.02
    assert live.data["runs"][0]["values"][1] == 0.9


def test_a_block_is_pinned_and_made_live_by_a_button(alice_client, report):
    address = f"/alpha/reports/{report.pk}/pin"

    alice_client.post(address, {"index": 5, "base_version": 1, "to": "pinned"})
    assert [shown.block.pin for shown in blocks_of(report)][:6] == [1, 2, 3, 4, None, 5]
    alice_client.post(address, {"index": 0, "base_version": 2, "to": "live"})
    alice_client.post(address, {"index": 1, "base_version": 3, "to": "pinned"})

    assert [shown.block.pin for shown in blocks_of(report)][:6] == [
        None,
        6,
        3,
        4,
        None,
        5,
    ]


def test_a_pin_of_what_has_changed_is_refused(alice_client, report):
    address = f"/alpha/reports/{report.pk}/pin"
    cases = ((0, 7, "in the meantime"), (99, 1, "no longer"), ("x", 1, "no longer"))
    for index, number, expected in cases:
        given = {"index": index, "base_version": number, "to": "live"}

        answer = alice_client.post(address, given, follow=True)

        assert expected in answer.text
        report.refresh_from_db()
        assert report.number == 1


def test_a_block_without_data_is_not_pinned(team, alice):
    report = make_report(team, alice, "::chart runs=999 pin")

    assert report.text == "::chart runs=999 pin"
    assert not report.pins.exists()


def test_a_pin_of_another_report_is_not_shown(team, alice, report):
    thief = make_report(team, alice, "::chart runs=1 pin=1\n::chart runs=1 pin=99")

    problems = [shown.problem for shown in blocks_of(thief)]
    assert ["pin 1" in problems[0], "pin 99" in problems[1]] == [True, True]


def test_another_teams_run_is_like_a_missing_one(team, alice, charlie):
    theirs = make_run(Team.objects.get(slug="other"), "secret-plan")
    lines = (
        "chart runs={0}|group run={0} step=1 prompt=0|compare runs={0}|table runs={0}"
    )
    text = "\n".join(f"::{line} pin" for line in lines.format(theirs.pk).split("|"))
    report = make_report(team, alice, text)

    shown = blocks_of(report)

    assert not report.pins.exists()
    assert "secret" not in str([one.data for one in shown])
    assert all(one.data["gone"] for one in shown)


def test_pinned_data_has_only_finite_numbers():
    tree = {"a": [1.0, math.nan, {"b": math.inf}], "c": "NaN"}

    assert plain(tree) == {"a": [1.0, None, {"b": None}], "c": "NaN"}


def test_a_live_block_polls_while_its_run_trains(alice_client, team, alice):
    going = make_measured_run(team, "going", state="queued", finished_at=None)
    ended = make_measured_run(team, "ended")
    text = (
        f"::table runs={going.pk}\n::table runs={ended.pk}\n::table runs={going.pk} pin"
    )
    report = make_report(team, alice, text)

    page = alice_client.get(f"/alpha/reports/{report.pk}/").text
    block = alice_client.get(f"/alpha/reports/{report.pk}/blocks/0").text

    assert page.count('hx-trigger="every 15s"') == 1
    assert f'hx-get="/alpha/reports/{report.pk}/blocks/0"' in block
    assert alice_client.get(f"/alpha/reports/{report.pk}/blocks/3").status_code == 404


def test_blocks_of_missing_runs_are_shown_with_a_reason(team, alice):
    huge = "9" * 18
    run = make_measured_run(team)
    report = make_report(
        team,
        alice,
        f"::chart runs={huge}\n::group run={run.pk} step={huge} prompt={huge}",
    )

    assert all(shown.data["gone"] for shown in blocks_of(report))
