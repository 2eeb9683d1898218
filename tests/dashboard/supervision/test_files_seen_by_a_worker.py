from unittest.mock import Mock

import pytest
from django.db import InterfaceError

from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.order import read_queue
from dashboard.supervision import tasks
from dashboard.supervision.models import Worker
from dashboard.supervision.worker_hosts import note_unseen, sees_files
from dashboard.supervision.workers import register
from tests.dashboard.completions.factories import make_checkpoint

NAME = "step-000002-attempt-1"


@pytest.fixture
def saved_run(run) -> Run:
    Run.objects.filter(id=run.id).update(attempt=1)
    make_checkpoint(run, 2, name=NAME)
    run.refresh_from_db()
    return run


def test_a_new_run_can_begin_anywhere(run):
    assert sees_files(run)


def test_a_saved_run_waits_for_a_worker_that_sees_its_checkpoint(saved_run):
    before = sees_files(saved_run)
    (run_directory(saved_run.id).checkpoints / NAME).mkdir(parents=True)

    assert not before
    assert sees_files(saved_run)


def test_a_run_whose_checkpoints_were_deleted_does_not_wait(saved_run):
    saved_run.checkpoints.update(deleted_at=saved_run.created_at)

    assert sees_files(saved_run)


def test_a_notice_that_cannot_be_written_costs_the_claimed_run_nothing(
    run, monkeypatch
):
    lost = Mock(side_effect=InterfaceError("the connection is closed"))
    monkeypatch.setattr(tasks, "note_unseen", lost)
    supervised = Mock()
    monkeypatch.setattr(tasks, "supervise", supervised)

    tasks.work.apply(throw=True)

    claim = supervised.call_args.args[0]
    assert (claim.run_id, claim.attempt) == (run.id, 1)
    assert lost.called


def test_the_workers_page_learns_why_a_run_is_left(saved_run):
    register("training@blind", num_slots=1)

    note_unseen("training@blind", [saved_run])
    reported = Worker.objects.get().notice
    line = read_queue()
    note_unseen("training@blind", [])

    assert f"run {saved_run.id}" in reported
    assert Worker.objects.get().notice == ""
    assert "checkpoint" in line.positions[saved_run.id].lack
