"""Which checkpoints are kept, and which can be deleted."""

import errno
import shutil
from unittest.mock import Mock

import pytest

from dashboard.accounts.models import AuditEntry
from dashboard.project.errors import UserError
from dashboard.runs.checkpoints import files, retention
from dashboard.runs.checkpoints.files import CheckpointStore, FilesGone
from dashboard.runs.checkpoints.listing import list_checkpoints, next_checkpoint
from dashboard.runs.models import Checkpoint, Run, RunState


def there(run: Run) -> list[int]:
    """Steps whose files are there."""
    rows = list_checkpoints(Run.objects.get(pk=run.pk)).rows
    return sorted(row.checkpoint.step for row in rows if row.is_there)


def why(checkpoint: Checkpoint) -> list[str]:
    rows = list_checkpoints(Run.objects.get(pk=checkpoint.run_id)).rows
    return next(row.reasons for row in rows if row.checkpoint == checkpoint)


def test_the_best_is_kept_when_the_trainer_deletes_it(saving, run):
    for score in (0.2, 0.9, 0.4, 0.5):
        saving.save(score=score)
        saving.prune(1)

    assert there(run) == [2, 4]
    assert why(Checkpoint.objects.get(step=2)) == ["best"]


def test_a_failed_delete_does_not_stop_ingestion(saving, run, monkeypatch):
    saving.save(score=0.5)
    broken = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(files, "discard", Mock(side_effect=broken))

    saving.save(score=0.9)

    assert run.checkpoints.count() == 2


def test_a_kept_checkpoint_is_read_from_the_kept_folder(saving, run):
    saving.save(score=0.9)

    found = CheckpointStore(run.pk).find("step-000001-attempt-1")

    assert found is not None
    saving.save(score=0.2)
    saving.prune(1)
    assert found.is_dir()


def test_a_better_checkpoint_replaces_the_best(saving, run):
    for score in (0.2, 0.9, 0.4, 0.95, 0.3):
        saving.save(score=score)
        saving.prune(1)

    assert there(run) == [4, 5]


def test_without_a_held_out_score_the_reward_decides(saving, run):
    for reward in (0.1, 0.8, 0.3):
        saving.save(reward=reward)
        saving.prune(1)

    assert there(run) == [2, 3]
    assert list_checkpoints(Run.objects.get(pk=run.pk)).metric == "reward/mean"


def test_a_pinned_checkpoint_is_never_deleted(saving, run, alice):
    first = saving.save(score=0.1)
    retention.pin(checkpoint=first, user=alice)
    for score in (0.2, 0.3):
        saving.save(score=score)
        saving.prune(1)

    assert there(run) == [1, 3]
    assert why(first) == ["pinned"]
    with pytest.raises(UserError) as error:
        retention.delete(checkpoint=first, user=alice)
    assert error.value.code == "checkpoints.pinned"
    assert AuditEntry.objects.filter(verb="checkpoint.pinned", actor=alice).exists()


def test_an_unpinned_checkpoint_is_deleted_like_others(saving, run, alice):
    first = saving.save(score=0.1)
    retention.pin(checkpoint=first, user=alice)
    saving.save(score=0.2)
    saving.prune(1)

    retention.unpin(checkpoint=first, user=alice)

    assert there(run) == [2]


def test_pinning_takes_no_disk_space(saving, run, alice):
    first = saving.save()
    retention.pin(checkpoint=first, user=alice)

    kept = CheckpointStore(run.pk).kept / first.name / "model/model.safetensors"
    own = saving.folder / first.name / "model/model.safetensors"
    assert kept.stat().st_ino == own.stat().st_ino


def test_a_deleted_checkpoint_cannot_be_pinned(saving, run, alice):
    first = saving.save(score=0.1)
    saving.save(score=0.2)
    saving.prune(1)

    with pytest.raises(FilesGone):
        retention.pin(checkpoint=first, user=alice)

    first.refresh_from_db()
    assert first.pinned_at is None


def test_half_a_deleted_checkpoint_is_not_pinned(saving, run, alice):
    """The trainer is just deleting it: its manifest still stands."""
    first = saving.save(score=0.1)
    saving.save(score=0.9)
    shutil.rmtree(saving.folder / first.name / "model")

    with pytest.raises(FilesGone):
        retention.pin(checkpoint=first, user=alice)

    assert not (CheckpointStore(run.pk).kept / first.name).exists()


def test_the_checkpoint_to_resume_from_cannot_be_deleted(saving, run, alice):
    old, new = saving.save(score=0.9), saving.save(score=0.1)

    with pytest.raises(UserError) as error:
        retention.delete(checkpoint=new, user=alice)
    assert error.value.code == "checkpoints.needed"
    retention.delete(checkpoint=old, user=alice)

    assert there(run) == [2]
    old.refresh_from_db()
    assert old.deleted_at is not None
    assert AuditEntry.objects.filter(verb="checkpoint.deleted", actor=alice).exists()


def test_the_last_checkpoint_of_an_ended_run_can_be_deleted(saving, run, alice):
    only = saving.save()
    saving.end(RunState.FINISHED)

    retention.delete(checkpoint=only, user=alice)

    assert there(run) == []


def test_a_deletion_shows_on_pages_that_are_open(saving, run, alice):
    old, _ = saving.save(), saving.save()
    before = Run.objects.get(pk=run.pk).seq

    retention.delete(checkpoint=old, user=alice)

    assert Run.objects.get(pk=run.pk).seq == before + 1


def test_the_metric_of_the_best_can_be_chosen(saving, run, alice):
    saving.save(score=0.9)
    saving.save(score=0.1)
    retention.choose_best_by(run=run, metric="none", user=alice)
    saving.prune(1)
    assert there(run) == [2]

    with pytest.raises(ValueError, match="loss"):
        retention.choose_best_by(run=run, metric="loss", user=alice)


def test_pinning_requires_links(saving, run, alice, monkeypatch):
    first = saving.save()
    retention.choose_best_by(run=run, metric="none", user=alice)

    def refuse(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(
        "dashboard.runs.checkpoints.files.link_files.__kwdefaults__", {"link": refuse}
    )
    with pytest.raises(ValueError, match="keep_last"):
        retention.pin(checkpoint=first, user=alice)


def test_the_tab_shows_what_is_kept_and_why(alice_client, saving, run):
    for score in (0.9, 0.2, 0.3):
        saving.save(score=score)
        saving.prune(1)

    page = alice_client.get(f"/alpha/runs/{run.pk}/checkpoints/")

    listing, after = page.context["listing"], page.context["next"]
    assert "2 of 3 kept" in page.text
    assert "needed to resume" in page.text
    assert [row.checkpoint.step for row in listing.kept] == [3, 1]
    assert [row.checkpoint.step for row in listing.gone] == [2]
    assert (listing.first.checkpoint.step, listing.first.score) == (1, 0.9)
    assert 'data-first="step-000001-attempt-1"' in page.text
    assert (after.since, after.num_done) == (3, 0)


def test_the_next_checkpoint_is_a_multiple_of_the_interval_or_the_last_step(
    saving, run
):
    def after(last_step: int, every: int) -> int | None:
        run.last_step, run.config["checkpoint"]["every_steps"] = last_step, every
        found = next_checkpoint(run, list_checkpoints(run))
        return found and found.step

    run.num_steps = 10
    assert [after(0, 4), after(3, 4), after(4, 4)] == [4, 4, 8]
    assert [after(8, 4), after(2, 0), after(10, 4)] == [10, 10, None]
    run.state = "stopped"
    assert after(3, 4) is None


def test_a_viewer_is_offered_no_change(bob_client, saving, run):
    saving.save()

    html = bob_client.get(f"/alpha/runs/{run.pk}/checkpoints/").content.decode()

    assert "Download" in html
    assert "/pin" not in html
    assert "/try/" not in html


def test_another_team_finds_no_checkpoint(charlie_client, saving, run):
    one = saving.save()

    for name in (one.name, "..", "%2e%2e", "step-000001-attempt-1%2f..", "other"):
        odd = f"/alpha/runs/{run.pk}/checkpoints/{name}/model.tar"
        assert charlie_client.get(odd).status_code == 404


def test_names_lead_nowhere(alice_client, saving, run):
    saving.save()

    for name in ("..", "%2e%2e", "%2e%2e%2fcheckpoints", "step-000009-attempt-1"):
        odd = f"/alpha/runs/{run.pk}/checkpoints/{name}/model.tar"
        assert alice_client.get(odd).status_code == 404


def test_unreachable_files_are_reported(alice_client, saving, run):
    one = saving.save()
    shutil.rmtree(saving.folder.parent)

    html = alice_client.get(f"/alpha/runs/{run.pk}/checkpoints/").content.decode()
    assert "COHORT_DATA" in html
    address = f"/alpha/runs/{run.pk}/checkpoints/{one.name}"
    for action in ("pin", "delete", "publish"):
        response = alice_client.post(f"{address}/{action}", {"name": "x"}, follow=True)
        assert "COHORT_DATA" in response.content.decode()
