from typing import Any

import pytest

from dashboard.completions.models import Group
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory, run_directory
from dashboard.supervision import takeover
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim, claim_run
from dashboard.supervision.takeover import CannotResume, take_over
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder, metrics_of


@pytest.fixture
def directory(run) -> RunDirectory:
    return run_directory(run.id)


@pytest.fixture
def first(run) -> Claim:
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    return claim


def lose(run: Run) -> Claim:
    """The first worker is gone; another claims the run."""
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    claim = claim_run(run.id, "worker-2")
    assert claim is not None
    return claim


def resume(claim: Claim, directory: RunDirectory) -> str | None:
    supervisor_log = SupervisorLog(
        directory.attempt(claim.attempt).supervisor_log, about="test"
    )
    found = take_over(
        claim, directory, supervisor_log=supervisor_log, keep_alive=lambda: None
    )
    return found.path.name if found else None


def history(run: Run) -> list[tuple[int, int]]:
    """Step and attempt of what a chart shows."""
    shown = run.steps.filter(superseded_by=None).order_by("step")
    return list(shown.values_list("step", "attempt"))


def test_rows_past_the_checkpoint_are_superseded(run, first, directory):
    log = LogBuilder().started().stepped(1).stepped(2).saved(2).stepped(3).stepped(4)
    log.write(directory.attempt(1).events)
    ingest(first, log.events)
    save(directory, 2)

    name = resume(lose(run), directory)

    run.refresh_from_db()
    assert name == "step-000002-attempt-1"
    assert history(run) == [(1, 1), (2, 1)]
    assert run.last_step == 2
    assert run.summary["best"] == {"reward/mean": 0.2, "step": 2}
    assert run.summary["last"]["loss"] == metrics_of(2)["loss"]
    assert run.attempts.get(number=2).from_step == 2
    past = Group.objects.filter(run=run, step__gt=2)
    assert set(past.values_list("superseded_by", flat=True)) == {2}


def test_lines_left_in_the_old_log_are_stored_up_to_the_checkpoint(
    run, first, directory
):
    log = LogBuilder().started().stepped(1)
    ingest(first, log.events)  # and then its supervisor died
    log.stepped(2).stepped(3).saved(3).stepped(4)
    log.write(directory.attempt(1).events)
    save(directory, 3)

    resume(lose(run), directory)

    assert history(run) == [(1, 1), (2, 1), (3, 1)]
    assert run.checkpoints.get().step == 3
    assert not run.events.filter(step=4).exists()


def test_the_new_attempt_continues_without_gap_or_duplicate(run, first, directory):
    log = LogBuilder().started().stepped(1).stepped(2).saved(2).stepped(3)
    log.write(directory.attempt(1).events)
    ingest(first, log.events)
    save(directory, 2)
    claim = lose(run)
    resume(claim, directory)

    ingest(claim, LogBuilder(attempt=2).started().stepped(3).stepped(4).events)

    assert history(run) == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_damaged_checkpoint_is_passed_over(run, first, directory):
    log = LogBuilder().started().stepped(1).saved(1).stepped(2).saved(2)
    log.write(directory.attempt(1).events)
    ingest(first, log.events)
    save(directory, 1)
    newest = save(directory, 2)
    (newest / "model" / "model.safetensors").write_bytes(b"weights at 3")
    claim = lose(run)

    name = resume(claim, directory)

    assert name == "step-000001-attempt-1"
    assert history(run) == [(1, 1)]
    reported = directory.attempt(2).supervisor_log.read_text()
    assert "step-000002-attempt-1: model/model.safetensors has SHA-256" in reported


def test_with_every_checkpoint_damaged_the_run_is_not_started_over(
    run, first, directory
):
    ingest(first, LogBuilder().started().stepped(1).saved(1).events)
    (save(directory, 1) / "manifest.json").write_text("{")

    with pytest.raises(CannotResume, match="manifest"):
        resume(lose(run), directory)


def test_a_run_that_was_never_saved_begins_again(run, first, directory):
    log = LogBuilder().started().stepped(1)
    log.write(directory.attempt(1).events)
    ingest(first, log.events)
    claim = lose(run)

    assert resume(claim, directory) is None

    ingest(claim, LogBuilder(attempt=2).started().stepped(1).events)
    assert history(run) == [(1, 2)]


def test_a_checkpoint_the_log_does_not_name_becomes_known(run, first, directory):
    log = LogBuilder().started().stepped(1)  # killed before it could say so
    log.write(directory.attempt(1).events)
    save(directory, 1)

    resume(lose(run), directory)

    assert run.checkpoints.get().name == "step-000001-attempt-1"
    assert history(run) == [(1, 1)]


def test_an_old_log_is_not_drained_again(run, first, directory):
    old = LogBuilder().started().stepped(1).saved(1).stepped(2).stepped(3)
    old.write(directory.attempt(1).events)  # of which nothing was stored
    save(directory, 1)
    second = lose(run)
    resume(second, directory)
    new = LogBuilder(attempt=2).started().stepped(2).stepped(3).saved(3)
    new.write(directory.attempt(2).events)
    save(directory, 3, attempt=2)

    resume(lose(run), directory)

    assert history(run) == [(1, 1), (2, 2), (3, 2)]


def test_later_checkpoints_of_a_cut_off_attempt_do_not_count(run, first, directory):
    old = LogBuilder().started().stepped(1).saved(1)
    old.write(directory.attempt(1).events)
    save(directory, 1)
    second = lose(run)
    resume(second, directory)
    new = LogBuilder(attempt=2).started().stepped(2).saved(2).stepped(3)
    new.write(directory.attempt(2).events)
    ingest(second, new.events)
    save(directory, 2, attempt=2)
    save(directory, 5, attempt=1)  # the first worker never learned of the second

    name = resume(lose(run), directory)

    assert name == "step-000002-attempt-2"
    assert history(run) == [(1, 1), (2, 2)]
    names = [path.name for path in directory.checkpoints.iterdir()]
    assert "step-000005-attempt-1" not in names


def test_an_attempt_that_slept_takes_no_checkpoint_from_the_next(
    run, first, directory, monkeypatch
):
    log = LogBuilder().started().stepped(1).saved(1)
    log.write(directory.attempt(1).events)
    ingest(first, log.events)
    save(directory, 1)
    save(directory, 3)  # of this attempt as well: it died before it reported it
    cut = takeover.cut_history

    def cut_and_sleep(claim: Claim, **options: Any) -> None:
        cut(claim, **options)
        save(directory, 4, attempt=lose(run).attempt)

    second = lose(run)
    (directory.checkpoints / "step-000003-attempt-1" / "manifest.json").write_text("{")
    monkeypatch.setattr(takeover, "cut_history", cut_and_sleep)

    resume(second, directory)

    names = {path.name for path in directory.checkpoints.glob("step-*")}
    assert names == {"step-000001-attempt-1", "step-000004-attempt-3"}
