from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from dashboard.samples.models import Group
from dashboard.samples.search import making
from dashboard.samples.search.counting import count_completions
from tests.dashboard.samples.blocks import make_blocks
from tests.dashboard.samples.factories import make_group, make_run

pytestmark = pytest.mark.django_db
ALL = 2**31 - 1


@pytest.fixture
def run(team: Team, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Steps 2 to 7 in blocks of two or three, and a step that no block has yet.

    A group of step 7 was gone back before.
    """
    monkeypatch.setattr(making, "MOST", 5)
    run = make_run(team)
    make_group(run, step=7, prompt_index=1, superseded_by=2)
    for step, size in ((2, 2), (3, 3), (4, 1), (6, 4), (7, 2)):
        make_group(run, step=step, rewards=(0.0,) * size)
    make_blocks(run)
    make_group(run, step=9, rewards=(0.0,) * 3)
    make_group(run, step=9, prompt_index=1, rewards=(0.0,) * 3, superseded_by=2)
    return run


def test_any_span_of_steps_is_counted_as_one_by_one(run: Run) -> None:
    def count_slowly(first: int, last: int) -> int:
        groups = Group.objects.current().filter(run=run, step__range=(first, last))
        return sum(len(group.completions) for group in groups)

    spans = [(first, last) for first in range(11) for last in (*range(11), ALL)]

    assert run.completion_blocks.count() > 1
    assert count_slowly(0, ALL) == 15
    for first, last in spans:
        found = count_completions(run, first=first, last=last)
        assert found == count_slowly(first, last), (first, last)


def test_rows_are_read_only_of_steps_behind_the_blocks(run: Run) -> None:
    with CaptureQueriesContext(connection) as queries:
        count_completions(run, first=0, last=ALL)

    _, of_rows = (query["sql"] for query in queries)
    assert '"step" > 7' in of_rows
