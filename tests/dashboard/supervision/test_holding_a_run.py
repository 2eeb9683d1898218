import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from dashboard.accounts.models import AuditEntry
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import Host
from dashboard.supervision import process as freeze_module
from dashboard.supervision import startup
from dashboard.supervision.ending import Ending, conclude
from dashboard.supervision.lease import Claim, LeaseLost, claim_next, claim_run, renew
from dashboard.supervision.supervisor import supervise
from tests.dashboard.supervision.test_forking_a_run import fork, keep
from tests.dashboard.supervision.test_supervising_a_run import FAST, never, script
from tests.environment import run_threads


def seconds_left(run: Run) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM lease_until - clock_timestamp()) "
            "FROM runs_run WHERE id = %s",
            [run.id],
        )
        return float(cursor.fetchone()[0])


@pytest.mark.django_db
def test_a_claim_increments_the_attempt_and_lasts_a_minute(run):
    claim = claim_run(run.id, "worker-1")

    run.refresh_from_db()
    assert claim == Claim(run_id=run.id, attempt=1)
    assert (run.state, run.worker) == (RunState.STARTING, "worker-1")
    assert 55 < seconds_left(run) <= 60
    assert run.attempts.get().worker == "worker-1"
    assert AuditEntry.objects.filter(verb="run.starting", object_id=run.id).exists()


@pytest.mark.django_db
def test_a_claimed_run_cannot_be_claimed_again(run):
    claim_run(run.id, "worker-1")

    assert claim_run(run.id, "worker-2") is None


@pytest.mark.django_db(transaction=True)
def test_only_one_of_ten_concurrent_claims_wins(run):
    won: list[Claim] = []
    start = threading.Barrier(10)

    def contend(number: int) -> None:
        try:
            start.wait()
            if claim := claim_run(run.id, f"worker-{number}"):
                won.append(claim)
        finally:
            connection.close()

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(10)]
    run_threads(threads)

    run.refresh_from_db()
    assert len(won) == 1
    assert run.attempt == 1
    assert run.attempts.count() == 1


@pytest.mark.django_db
def test_the_oldest_run_is_taken_first_and_a_resting_one_left(launch):
    resting, older, _ = (launch(name=name) for name in ("a", "b", "c"))
    Run.objects.filter(id=resting.id).update(not_before=Now() + timedelta(seconds=9))

    claim = claim_next(Host(name="worker-1"), sees=lambda run: True)

    assert claim is not None
    assert claim.run_id == older.id


@pytest.mark.django_db
def test_a_run_whose_files_are_elsewhere_is_left_to_another(launch):
    elsewhere, here = launch(name="a"), launch(name="b")

    claim = claim_next(Host(name="worker-1"), sees=lambda run: run.id != elsewhere.id)

    assert claim is not None
    assert claim.run_id == here.id
    assert Run.objects.get(id=elsewhere.id).state == RunState.QUEUED


@pytest.mark.django_db
def test_an_expired_lease_is_renewed_if_no_other_worker_has_the_run(run):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(hours=1))

    assert renew(claim) == RunState.STARTING
    assert seconds_left(run) > 55


@pytest.mark.django_db
def test_a_former_holder_can_neither_renew_nor_end_a_run(run):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    Run.objects.filter(id=run.id).update(attempt=2)

    with pytest.raises(LeaseLost):
        renew(claim)
    killed = Ending(status=-9, last_word=None, step=0, log_lines=[], was_released=False)
    with pytest.raises(LeaseLost):
        conclude(claim, killed)

    run.refresh_from_db()
    assert (run.state, run.num_losses) == (RunState.STARTING, 0)


def supervise_with_a_short_lease(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose preparation renews at each chance."""
    monkeypatch.setattr(startup, "RENEW_SECONDS", 0.0)
    claim = claim_run(run.id, "worker-1")
    assert claim
    Run.objects.filter(id=run.id).update(lease_until=Now())
    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)


@pytest.mark.django_db
def test_a_run_is_held_while_its_rows_are_written(run, monkeypatch):
    left: list[float] = []
    write = freeze_module.write_durably

    def note(*texts: Any) -> None:
        left.append(seconds_left(run))
        write(*texts)

    monkeypatch.setattr(freeze_module, "write_durably", note)

    supervise_with_a_short_lease(run, monkeypatch)

    assert left[0] > 30


@pytest.mark.django_db
def test_a_fork_is_held_while_its_checkpoint_is_copied(run, launch, monkeypatch):
    checkpoint = keep(run, 4)
    parents = run_directory(run.id).path
    parents.rename(parents.with_name("elsewhere"))
    child = fork(checkpoint, launch)
    parents.with_name("elsewhere").rename(parents)
    left: list[float] = []

    def refuse(*_: str) -> None:
        left.append(seconds_left(child))
        Run.objects.filter(id=child.id).update(lease_until=Now())
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)

    supervise_with_a_short_lease(child, monkeypatch)

    assert len(left) == 2  # its weights and its manifest
    assert left[1] > 30


@pytest.mark.django_db
def test_a_run_is_paused_when_its_model_folder_is_disallowed(run, tmp_path, settings):
    """An operator can allow it again."""
    settings.MODEL_FOLDERS = ()
    run.config["model"]["path"] = str(tmp_path / "model")
    Run.objects.filter(id=run.id).update(config=run.config)
    claim = claim_run(run.id, "worker-1")
    assert claim

    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)

    run.refresh_from_db()
    assert run.state == RunState.PAUSED
    assert "COHORT_MODEL_FOLDERS" in run.pause_reason


@pytest.mark.django_db
def test_a_run_whose_rows_a_taskset_may_not_play_ends_before_its_trainer(run, settings):
    settings.TASKSETS = frozenset({"words"})
    run.config["environment"] = {"kind": "verifiers", "taskset": "words"}
    Run.objects.filter(id=run.id).update(config=run.config)
    claim = claim_run(run.id, "worker-1")
    assert claim

    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)

    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "column task" in run.fail_reason
    assert not run_directory(run.id).rows.exists()


@pytest.mark.django_db
def test_a_model_folder_that_now_leads_to_another_team_ends_the_run(
    run, tmp_path, settings
):
    folder = tmp_path / "model"
    folder.symlink_to(Path(settings.COHORT_DATA) / "runs/999999/kept/step-1/model")
    run.config["model"]["path"] = str(folder)
    Run.objects.filter(id=run.id).update(config=run.config)
    claim = claim_run(run.id, "worker-1")
    assert claim

    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)

    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert not run_directory(run.id).config.exists()
