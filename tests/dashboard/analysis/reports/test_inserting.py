"""A block chosen by search: what is offered, and the line it makes."""

import re

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.analysis.reports.stories import (
    make_measured_run,
    make_sampled_group,
)
from tests.dashboard.completions.factories import make_run

LINE = re.compile(r"<code data-insert-line>(.*?)</code>")


def get_page(client: Client, **chosen: object) -> str:
    return client.get("/alpha/reports/insert", chosen).text


def line(page: str) -> str | None:
    found = LINE.search(page)
    return found[1] if found else None


@pytest.fixture(scope="module")
def runs(shared_team) -> list[Run]:
    runs = [make_measured_run(shared_team, name) for name in ("first", "second")]
    make_sampled_group(runs[0])
    return runs


def test_each_kind_makes_its_line(bob_client, runs):
    one, two = (run.pk for run in runs)
    both = [two, one]

    assert line(get_page(bob_client, kind="chart", runs=both, metric="kl/mean")) == (
        f"::chart runs={two},{one} metric=kl/mean"
    )
    assert line(get_page(bob_client, kind="compare", runs=both, pinned="on")) == (
        f"::compare runs={two},{one} pin"
    )
    assert line(get_page(bob_client, kind="table", runs=one)) == f"::table runs={one}"
    assert line(get_page(bob_client, kind="mismatch", runs=both)) == (
        f"::mismatch run={two}"
    )
    assert line(get_page(bob_client, kind="group", runs=one, group="40/3")) == (
        f"::group run={one} step=40 prompt=3"
    )


def test_nothing_is_inserted_while_something_is_missing(bob_client, runs):
    for kind, num_runs in (("chart", 0), ("compare", 1), ("group", 0), ("group", 1)):
        page = get_page(bob_client, kind=kind, runs=[run.pk for run in runs[:num_runs]])

        assert line(page) is None, kind
        assert "data-insert disabled" in page, kind


def test_runs_are_found_by_name_and_groups_by_step(bob_client, runs):
    page = get_page(bob_client, q="sec")
    assert "second" in page
    assert "first" not in page
    group = get_page(bob_client, kind="group", runs=runs[0].pk, step=40)
    assert 'value="40/3"' in group
    # One run has the group: another takes its place.
    radios = re.findall(r'type="radio" name="(\w+)"', group)
    assert radios.count("runs") == 2
    assert "None stored" in get_page(bob_client, kind="group", runs=runs[0].pk, step=7)


def test_another_teams_runs_are_neither_offered_nor_accepted(bob_client, charlie, runs):
    theirs = make_run(Team.objects.get(slug="other"), "secret-plan")

    page = get_page(bob_client, kind="chart", runs=[theirs.pk, "x", "9" * 30], q="")

    assert "secret" not in page
    assert line(page) is None
