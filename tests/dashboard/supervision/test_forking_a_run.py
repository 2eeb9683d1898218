"""A fork starts from another run's checkpoint, even if that run is deleted."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from dashboard.accounts.models import AuditEntry
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.checkpoints.listing import fork_point_of, take_checkpoint
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Checkpoint, Run, RunState
from dashboard.runs.queries import RunDirectory, run_directory
from dashboard.supervision.lease import claim_run
from dashboard.supervision.supervisor import supervise
from dashboard.supervision.worker_hosts import sees_files
from tests.dashboard.completions.factories import make_checkpoint
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.factories import Launcher
from tests.dashboard.supervision.test_supervising_a_run import FAST, never, scripted
from trainer.config import RunConfig


def keep(run: Run, step: int, *, attempt: int = 1) -> Checkpoint:
    """A checkpoint on disk and in the database."""
    path = save(run_directory(run.id), step, attempt=attempt)
    manifest = (path / "manifest.json").read_bytes()
    return make_checkpoint(
        run,
        step,
        attempt=attempt,
        name=path.name,
        sha256=hashlib.sha256(manifest).hexdigest(),
        num_bytes=9,
    )


def fork(checkpoint: Checkpoint, launch: Launcher, **parts: Any) -> Run:
    requested = Launch(
        name="fork",
        config=RunConfig.model_validate({**checkpoint.run.config, **parts}),
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label="tiny",
    )
    return launch_run(requested, team=launch.team, user=launch.user, fork_of=checkpoint)


def live(run: Run) -> tuple[Run, list[Path | None]]:
    """One attempt of a trainer that exits at once; returns its --resume-from."""
    reported: list[Path | None] = []

    def command(
        directory: RunDirectory, *, attempt: int, resume_from: Path | None
    ) -> list[str]:
        reported.append(resume_from)
        return scripted("be_killed", directory.attempt(attempt).path, attempt)

    Run.objects.filter(id=run.id).update(not_before=None)
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    supervise(claim, is_shutting_down=never, command=command, timing=FAST)
    return Run.objects.get(id=run.id), reported


@pytest.fixture
def checkpoint(run) -> Checkpoint:
    return keep(run, 4, attempt=3)


def test_a_fork_waits_at_the_step_of_its_checkpoint(checkpoint, launch):
    child = fork(checkpoint, launch)

    assert (child.state, child.last_step) == (RunState.QUEUED, 4)
    assert (child.forked_from, child.fork_step) == (checkpoint.run, 4)
    assert child.fork_sha256 == checkpoint.sha256
    entry = AuditEntry.objects.filter(verb="run.launched").latest("pk")
    assert (entry.detail["fork_of"], entry.detail["at"]) == (checkpoint.run_id, 4)


def test_a_forks_trainer_resumes_from_its_own_checkpoint(checkpoint, launch):
    child = fork(checkpoint, launch)

    _, reported = live(child)

    directory = run_directory(child.id)
    assert reported == [fork_point_of(child, directory)]
    assert child.attempts.get().from_step == 4


def test_a_queued_fork_survives_deleted_parent_checkpoints(checkpoint, launch):
    child = fork(checkpoint, launch)
    shutil.rmtree(run_directory(checkpoint.run_id).checkpoints)

    _, reported = live(child)

    assert reported[0] is not None
    assert (reported[0] / "model" / "model.safetensors").read_bytes() == b"weights at 4"


def test_a_checkpoint_that_only_its_pin_has_kept_is_forked(checkpoint, launch):
    CheckpointStore(checkpoint.run_id).keep(checkpoint.name)
    shutil.rmtree(run_directory(checkpoint.run_id).checkpoints)

    child = fork(checkpoint, launch)

    own = fork_point_of(child, run_directory(child.id)) / "model" / "model.safetensors"
    assert own.read_bytes() == b"weights at 4"


def test_the_files_are_shared_and_not_copied(checkpoint, launch):
    child = fork(checkpoint, launch)

    own = fork_point_of(child, run_directory(child.id)) / "model" / "model.safetensors"
    assert own.stat().st_nlink == 2


def test_files_are_copied_where_the_file_system_has_no_links(
    checkpoint, launch, monkeypatch
):
    def refuse(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)

    child = fork(checkpoint, launch)

    own = fork_point_of(child, run_directory(child.id)) / "model" / "model.safetensors"
    assert (own.stat().st_nlink, own.read_bytes()) == (1, b"weights at 4")


def test_a_worker_takes_files_that_the_launch_could_not_see(checkpoint, launch):
    parents = run_directory(checkpoint.run_id).path
    parents.rename(parents.with_name("elsewhere"))
    child = fork(checkpoint, launch)
    unseen = sees_files(child)

    parents.with_name("elsewhere").rename(parents)
    _, reported = live(child)

    assert not unseen
    assert reported == [fork_point_of(child, run_directory(child.id))]


def test_a_fork_without_files_fails_with_a_reason(checkpoint, launch):
    parents = run_directory(checkpoint.run_id)
    parents.path.rename(parents.path.with_name("elsewhere"))
    child = fork(checkpoint, launch)
    parents.checkpoints.mkdir(parents=True)

    ended, reported = live(child)

    assert (ended.state, reported) == (RunState.FAILED, [])
    assert checkpoint.name in ended.fail_reason


def test_a_fork_of_a_damaged_checkpoint_fails_with_a_sentence(checkpoint, launch):
    child = fork(checkpoint, launch)
    own = fork_point_of(child, run_directory(child.id)) / "model" / "model.safetensors"
    own.write_bytes(b"weights of 4")

    ended, _ = live(child)

    assert ended.state == RunState.FAILED
    assert "has SHA-256" in ended.fail_reason


def test_a_fork_of_deleted_files_is_rejected(checkpoint, launch):
    shutil.rmtree(run_directory(checkpoint.run_id).checkpoints / checkpoint.name)

    with pytest.raises(ValueError, match="deleted"):
        fork(checkpoint, launch)

    assert not Run.objects.filter(forked_from=checkpoint.run).exists()
    folder = run_directory(checkpoint.run_id).path.parent
    assert [path.name for path in folder.iterdir()] == [str(checkpoint.run_id)]


def test_a_file_deleted_before_its_folder_was_read_is_missed(checkpoint, tmp_path):
    source = run_directory(checkpoint.run_id).checkpoints / checkpoint.name
    (source / "model" / "model.safetensors").unlink()

    with pytest.raises(ValueError, match="deleted"):
        take_checkpoint(
            checkpoint.run_id,
            checkpoint.name,
            tmp_path / "own",
            sha256=checkpoint.sha256,
        )

    assert list(tmp_path.glob("*own*")) == []


def test_a_fork_that_is_lost_before_it_saved_begins_from_its_origin_again(
    checkpoint, launch
):
    child = fork(checkpoint, launch)
    live(child)

    _, reported = live(child)

    assert reported == [fork_point_of(child, run_directory(child.id))]


def test_a_later_attempt_continues_from_the_forks_own_checkpoint(checkpoint, launch):
    child = fork(checkpoint, launch)
    live(child)
    own = keep(child, 6)

    _, reported = live(child)

    assert [path.name for path in reported if path] == [own.name]


def test_a_fork_has_both_source_and_step(run):
    for wrong in ({"fork_step": 3}, {"forked_from": run}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Run.objects.filter(id=run.id).update(**wrong)
