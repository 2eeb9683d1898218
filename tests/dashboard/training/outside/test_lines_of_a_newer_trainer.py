"""A reporter that is newer than the server loses nothing that the server knows."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from dashboard.accounts.models import Team, User
from dashboard.runs.models import RunEvent
from dashboard.training.outside.arrival import take_lines
from dashboard.training.outside.opening import Opening, open_run
from tests.dashboard.training.logs import LogBuilder
from tests.dashboard.training.outside.sending import lines_of

pytestmark = pytest.mark.django_db


def test_its_steps_are_stored_and_what_is_new_is_noted(team: Team, alice: User) -> None:
    opening = Opening(key=uuid4(), name="theirs", tool="TRL", rules={"answer": 1.0})
    run = open_run(opening, team=team, user=alice)[0]
    trees = [json.loads(line) for line in lines_of(LogBuilder().stepped(1))]
    newer = [{**tree, "of_a_later_version": 1} for tree in trees]
    place = {"epoch": 1, "time": 5.0, "step": 1}
    newer.append({"type": "weather_changed", "line": len(trees) + 1, **place})

    texts = [json.dumps(tree).encode() for tree in newer]
    stored = take_lines(run, epoch=1, first=1, texts=texts)

    assert (stored.line, stored.step) == (len(newer), 1)
    note = RunEvent.objects.get(run=run, type="warned")
    assert (note.line, note.body["code"]) == (len(newer), "unknown_event")
