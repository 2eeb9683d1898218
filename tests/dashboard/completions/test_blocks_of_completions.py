"""A worker packs the completions of finished steps; a resume takes blocks away."""

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.completions.models import CompletionBlock, Group
from dashboard.completions.search import blocks as blocks_module
from dashboard.completions.search import indexing
from dashboard.completions.search.blocks import read_blocks
from dashboard.completions.search.indexing import (
    count_completions,
    index_run,
    next_stretch,
    runs_to_index,
)
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run

pytestmark = pytest.mark.django_db


def spans(run: Run) -> list[tuple[int, int, int]]:
    rows = CompletionBlock.objects.filter(run=run).order_by("first_step")
    return list(rows.values_list("first_step", "last_step", "num_completions"))


def make_groups(run: Run, *steps: int) -> None:
    for step in steps:
        make_group(run, step=step, rewards=(1.2, 0.0))


def test_a_block_ends_where_it_is_full(team, monkeypatch):
    monkeypatch.setattr(indexing, "MOST", 5)
    run = make_run(team)
    make_groups(run, 1, 2, 3, 4, 5)

    assert make_blocks(run) == 3

    assert spans(run) == [(1, 2, 4), (3, 4, 4), (5, 5, 2)]


def test_a_step_larger_than_a_block_is_one(team, monkeypatch):
    monkeypatch.setattr(indexing, "MOST", 1)
    run = make_run(team)
    make_groups(run, 1, 2)

    make_blocks(run)

    assert spans(run) == [(1, 1, 2), (2, 2, 2)]


def test_texts_held_at_once_are_bounded(team, monkeypatch):
    monkeypatch.setattr(indexing, "MOST_CHARS", 100)
    run = make_run(team)
    for step in (1, 2, 3):
        make_group(run, step=step, rewards=(0.0,), texts=["ä" * 25])

    make_blocks(run)

    assert spans(run) == [(1, 2, 2), (3, 3, 1)]


def test_the_end_of_a_block_reads_few_groups(team, monkeypatch):
    monkeypatch.setattr(indexing, "MOST_GROUPS", 2)
    run = make_run(team)
    make_groups(run, *range(1, 9))

    make_blocks(run)

    assert spans(run)[0] == (1, 6, 12)  # 3, and then 3 that join them
    assert sum(num for _, _, num in spans(run)) == 16


def test_new_steps_join_blocks_that_are_no_larger(team):
    run = make_run(team)
    make_groups(run, 1, 2, 3)
    make_blocks(run)
    make_groups(run, 4)
    make_blocks(run)
    assert spans(run) == [(1, 3, 6), (4, 4, 2)]

    make_groups(run, 5)
    make_blocks(run)
    assert spans(run) == [(1, 3, 6), (4, 5, 4)]

    make_groups(run, 6)
    make_blocks(run)
    make_groups(run, 7)
    make_blocks(run)

    assert spans(run) == [(1, 7, 14)]


def test_a_running_run_waits_for_enough_completions(team, monkeypatch):
    run = make_run(team, state="queued", finished_at=None)
    make_groups(run, 1)
    assert make_blocks(run) == 0

    monkeypatch.setattr(indexing, "FEWEST", 2)

    assert make_blocks(run) == 1


def test_steps_in_progress_and_superseded_groups_have_no_block(team):
    run = make_run(team)
    make_groups(run, 1)
    make_blocks(run)
    make_group(run, step=1, superseded_by=2, prompt_index=9)
    make_groups(run, 2)

    assert runs_to_index().count() == 0
    assert next_stretch(run) is None


def test_finished_steps_without_groups_are_read_once(team):
    run = make_run(team, last_step=3)

    assert list(runs_to_index()) == [run]
    assert index_run(run, until=time.monotonic() + 60) == 1

    assert list(runs_to_index()) == []
    assert read_blocks(run).num_completions == 0


def test_a_block_is_not_stored_when_its_history_has_changed(team, monkeypatch):
    run = make_run(team)
    make_groups(run, 1, 2)
    pack = indexing._pack

    def pack_and_resume(*args):
        Group.objects.filter(run=run, step=2).update(superseded_by=2)
        return pack(*args)

    monkeypatch.setattr(indexing, "_pack", pack_and_resume)

    assert make_blocks(run) == 0
    assert spans(run) == []


def test_without_blocks_only_the_newest_steps_are_read(team, monkeypatch):
    monkeypatch.setattr(blocks_module, "MOST_FRESH", 8)  # two groups, the run says
    run = make_run(team)
    make_groups(run, 1, 2, 3, 4, 5)

    found = read_blocks(run)

    assert found.num_completions == 4
    assert (found.left_out, found.fresh_from) == ((1, 3), 4)


def test_a_step_of_more_than_is_read_is_read_all_the_same(team, monkeypatch):
    monkeypatch.setattr(blocks_module, "MOST_FRESH", 4)
    run = make_run(team)
    for prompt in range(3):
        make_group(run, step=1, prompt_index=prompt, rewards=(1.2, 0.0))

    found = read_blocks(run)

    assert (found.num_completions, found.left_out) == (6, None)


def test_the_task_makes_blocks_of_all_runs(team):
    runs = [make_run(team, name, last_step=1) for name in ("one", "two")]
    for run in runs:
        make_groups(run, 1)

    indexing.index()

    assert [spans(run) for run in runs] == [[(1, 1, 2)]] * 2


def test_beat_rings_the_task():
    from dashboard.celery import app

    assert app.conf.beat_schedule["index"]["task"] == indexing.index.name


pytestmark = pytest.mark.django_db
ALL = 2**31 - 1


@pytest.fixture
def run(team, monkeypatch) -> Run:
    """Steps 2 to 7 in blocks of two or three, and a step that no block has yet.

    A group of step 7 was gone back before.
    """
    monkeypatch.setattr(indexing, "MOST", 5)
    run = make_run(team)
    make_group(run, step=7, prompt_index=1, superseded_by=2)
    for step, size in ((2, 2), (3, 3), (4, 1), (6, 4), (7, 2)):
        make_group(run, step=step, rewards=(0.0,) * size)
    make_blocks(run)
    make_group(run, step=9, rewards=(0.0,) * 3)
    make_group(run, step=9, prompt_index=1, rewards=(0.0,) * 3, superseded_by=2)
    return run


def test_any_span_of_steps_is_counted_as_one_by_one(run):
    def count_slowly(first: int, last: int) -> int:
        groups = Group.objects.current().filter(run=run, step__range=(first, last))
        return sum(len(group.completions) for group in groups)

    spans = [(first, last) for first in range(11) for last in (*range(11), ALL)]

    assert run.completion_blocks.count() > 1
    assert count_slowly(0, ALL) == 15
    for first, last in spans:
        found = count_completions(run, first=first, last=last)
        assert found == count_slowly(first, last), (first, last)


def test_rows_are_read_only_of_steps_behind_the_blocks(run):
    with CaptureQueriesContext(connection) as queries:
        count_completions(run, first=0, last=ALL)

    _, of_rows = (query["sql"] for query in queries)
    assert '"step" > 7' in of_rows
