"""A team's runs in the line, and how many of others stand between."""

from __future__ import annotations

import pytest

from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run
from dashboard.runs.queue.line import read_line
from dashboard.runs.queue.team_line import team_line
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.django_db


def test_other_teams_runs_are_counted_where_they_stand(team: Team) -> None:
    other = Team.objects.create(slug="beta", name="Beta")
    for _ in range(3):
        queue_run(team)
    for _ in range(4):
        queue_run(other)

    own = team_line(team, read_line())

    assert [entry.num_foreign for entry in own.entries] == [0, 1, 1]
    assert own.num_foreign_after == 2


def test_runs_rise_and_sink_among_those_of_their_priority(team: Team) -> None:
    runs = [queue_run(team) for _ in range(3)]
    Run.objects.filter(id=runs[2].id).update(priority=Priority.LOW)

    entries = team_line(team, read_line()).entries

    assert [entry.run for entry in entries] == runs
    assert [(e.can_rise, e.can_sink) for e in entries] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert {entry.start for entry in entries} == {"Start not known"}
