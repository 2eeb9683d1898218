"""Two changes of one thing at the same time: the second reads what the first wrote."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from dashboard.accounts.models import Team
from dashboard.alerts.models import Rule
from dashboard.runs.models import Run
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.test_replays_at_once import (
    wait_for_a_blocked_lock,
)
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.django_db(transaction=True)


def change_run(team: Team) -> tuple[str, dict[str, Any], Callable[[], object]]:
    run = queue_run(team, name="old", notes="old")
    held = Run.objects.filter(pk=run.pk)
    return f"/runs/{run.pk}", {"notes": "mine"}, lambda: held.update(name="theirs")


def change_rule(team: Team) -> tuple[str, dict[str, Any], Callable[[], object]]:
    rule = make_rule(team, threshold=1.0)
    held = Rule.objects.filter(pk=rule.pk)
    path = f"/alert-rules/{rule.pk}"
    return path, {"threshold": 0.5}, lambda: held.update(name="theirs")


@pytest.mark.parametrize("begin", [change_run, change_rule])
def test_a_concurrent_change_is_not_lost(begin, team, alice):
    program = Program(make_token(alice, "write"))
    path, mine, theirs = begin(team)

    def ask() -> Any:
        try:
            return program.patch(path, mine)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            theirs()
            requested = pool.submit(ask)
            wait_for_a_blocked_lock()
        answer = requested.result(30)

    assert answer.status_code == 200, answer.text
    rows = {change_run: Run, change_rule: Rule}[begin]
    kept = rows.objects.values().get()
    assert {name: kept[name] for name in mine} == mine
    assert kept["name"] == "theirs"
