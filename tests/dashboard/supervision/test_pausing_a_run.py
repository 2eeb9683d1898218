"""A run pauses automatically or on request, and continues when it is resumed."""

from datetime import timedelta
from pathlib import Path

from django.db.models.functions import Now

from dashboard.accounts.models import AuditEntry
from dashboard.runs.control import request_pause, request_stop, resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import Host
from dashboard.supervision.ending import DISK_REMEDY, OWNERS_REMEDY, pause_unstarted
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_next, claim_run, lose_attempt, reap
from dashboard.supervision.process import write_snapshot
from dashboard.supervision.tasks import resume_on_free_disk
from tests.dashboard.supervision.factories import RECIPE
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.test_supervising_a_run import after_steps, live
from trainer.config import RunConfig, read_config
from trainer.events import RunPaused

SHARE = {"max_error_share": 0.1}
PAUSE = {
    "reason": "All failed.",
    "share": 1.0,
    "limit": 0.2,
    "faults": [],
    "checkpoint": "step-000001-attempt-1",
}


def anywhere(run: Run) -> bool:
    return True


def test_a_run_with_failing_scores_pauses_with_a_reason(run):
    paused = live(run, "pause_itself")

    assert (paused.state, paused.lease_until) == (RunState.PAUSED, None)
    assert (paused.finished_at, paused.num_losses, paused.last_step) == (None, 0, 2)
    fault, remedy = paused.pause_reason.split("\n")
    assert " 16 completions of step 3" in fault
    assert fault.endswith(": It is␀away.")
    assert "20%" in remedy
    assert "step 3" in remedy
    entry = AuditEntry.objects.get(verb="run.paused")
    assert entry.detail["reason"] == paused.pause_reason
    assert "paused" in run.attempts.get().outcome
    assert run.events.get(type="run_paused").body["faults"][0]["count"] == 16


def test_a_run_paused_for_disk_space_resumes_automatically(run):
    paused = live(run, "wait_for_disk_space")

    assert paused.state == RunState.PAUSED
    assert paused.pause_reason.endswith(f"\n{DISK_REMEDY}")
    assert resume_on_free_disk() == [run.id]
    run.refresh_from_db()
    assert (run.state, run.pause_reason) == (RunState.QUEUED, "")


def test_a_run_that_someone_paused_does_not_resume(run, alice):
    act = after_steps(2, run, lambda: request_pause(run=run, user=alice))

    paused = live(run, "wait_for_disk_space_on_request", act)

    by_whom, _, remedy = paused.pause_reason.split("\n")
    assert by_whom.startswith("Paused by alice")
    assert remedy == OWNERS_REMEDY
    assert resume_on_free_disk() == []


def test_a_run_on_another_disk_does_not_resume(run):
    """It would meet the same at once, and hold a GPU without an end."""
    paused = live(run, "wait_for_a_person_to_free_disk_space")

    assert paused.pause_reason.endswith(f"\n{OWNERS_REMEDY}")
    assert resume_on_free_disk() == []


def test_a_run_on_a_node_with_a_full_disk_does_not_resume(run, settings):
    """It would compare what the node's disk lacks with the worker's."""
    settings.COHORT_RAY_STORAGE = "/mnt/cohort"
    run.config["distributed"] = {"where": "ray"}
    run.save()

    paused = live(run, "wait_for_disk_space")

    assert paused.pause_reason.endswith(f"\n{OWNERS_REMEDY}")
    assert resume_on_free_disk() == []


def test_a_stop_is_heeded_where_the_disk_was_full(run, alice):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    assert request_stop(run=run, user=alice)

    pause_unstarted(claim, "disk full", "No space.")

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert not run.attempts.filter(ended_at=None).exists()


def test_a_stop_request_is_followed_by_another_supervisor(run, alice):
    claim_run(run.id, "worker-1")
    stale = Run.objects.get(id=run.id)
    assert request_stop(run=run, user=alice)

    assert lose_attempt(stale, outcome="its folder vanished")

    run.refresh_from_db()
    assert (run.state, run.num_losses) == (RunState.STOPPED, 0)


def test_a_trainer_killed_after_its_pause_event_has_paused(run):
    paused = live(run, "be_killed_while_it_pauses")

    assert paused.state == RunState.PAUSED


def test_a_supervisor_killed_after_the_pause_event_costs_one_attempt(run):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    log = LogBuilder().started().stepped(1).saved(1)
    log.add(RunPaused, step=1, **PAUSE)
    ingest(claim, log.events)
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))

    assert reap(grace=timedelta(0)) == [run.id]

    run.refresh_from_db()
    assert run.state == RunState.QUEUED  # where it will pause again


def test_a_paused_run_does_not_block_others(run, launch):
    live(run, "pause_itself")
    other = launch(name="second")

    claim = claim_next(Host(name="worker-1"), sees=anywhere)

    assert claim is not None
    assert claim.run_id == other.id
    assert reap(grace=timedelta(0)) == []
    run.refresh_from_db()
    assert run.state == RunState.PAUSED


def test_a_requested_pause_saves_a_checkpoint(run, alice):
    act = after_steps(2, run, lambda: request_pause(run=run, user=alice))

    paused = live(run, "train_until_stopped", act)

    assert (paused.state, paused.lease_until) == (RunState.PAUSED, None)
    assert run.checkpoints.get().step == paused.last_step
    assert paused.pause_reason.startswith("Paused by alice")
    assert AuditEntry.objects.get(verb="run.pause_requested").actor == alice


def test_a_trainer_deaf_to_a_pause_is_killed_and_the_run_paused(run, alice):
    act = after_steps(1, run, lambda: request_pause(run=run, user=alice))

    assert live(run, "ignore_requests", act).state == RunState.PAUSED


def test_a_worker_that_shuts_down_meanwhile_leaves_it_paused(run, alice):
    act = after_steps(1, run, lambda: request_pause(run=run, user=alice))

    paused = live(run, "train_until_stopped", lambda: act() or run.steps.count() >= 1)

    assert paused.state == RunState.PAUSED


def test_a_run_lost_while_it_was_to_pause_is_paused(run, alice):
    claim_run(run.id, "worker-1")
    request_pause(run=run, user=alice)
    run.refresh_from_db()

    assert lose_attempt(run, outcome="lost")

    run.refresh_from_db()
    assert run.state == RunState.PAUSED


def test_a_stop_is_stronger_than_a_pause(run, alice):
    def ask() -> None:
        request_pause(run=run, user=alice)
        request_stop(run=run, user=alice)

    ended = live(run, "train_until_stopped", after_steps(1, run, ask))

    assert ended.state == RunState.STOPPED


def test_only_a_run_with_a_worker_pauses(run, alice):
    assert not request_pause(run=run, user=alice)


def test_a_resumed_run_is_queued_afresh(run, alice):
    live(run, "pause_itself")
    Run.objects.filter(id=run.id).update(num_losses=2)
    run.refresh_from_db()

    assert resume_run(run=run, user=alice)
    assert not resume_run(run=run, user=alice)

    run.refresh_from_db()
    assert (run.state, run.num_losses, run.pause_reason) == (RunState.QUEUED, 0, "")
    assert AuditEntry.objects.get(verb="run.resume_requested").actor == alice
    claim = claim_run(run.id, "worker-2")
    assert claim is not None
    assert claim.attempt == 2


def test_a_paused_run_can_be_stopped(run, alice):
    live(run, "pause_itself")

    assert request_stop(run=run, user=alice)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert run.checkpoints.exists()


def test_a_resume_may_allow_more_errors_in_every_phase(launch, alice):
    run = launch(
        phases=[
            {"name": "a", "num_steps": 4, "changes": {}},
            {"name": "b", "num_steps": 6, "changes": {"reward": SHARE}},
        ]
    )
    live(run, "pause_itself")
    run.refresh_from_db()

    resume_run(run=run, user=alice, max_error_share=0.9)

    run.refresh_from_db()
    write_snapshot(run)
    read = read_config(run_directory(run.id).config)
    shares = [phase.config.reward.max_error_share for phase in read.phase_configs]
    assert shares == [0.9, 0.9]
    entry = AuditEntry.objects.get(verb="run.resume_requested")
    assert entry.detail == {"max_error_share": 0.9}


def test_a_resume_may_raise_the_limit_of_all_phases(launch, alice):
    run = launch(
        reward={"recipe": RECIPE, "max_error_share": 0.3},
        phases=[{"name": "a", "num_steps": 10, "changes": {"reward": SHARE}}],
    )
    live(run, "pause_itself")
    run.refresh_from_db()

    resume_run(run=run, user=alice, max_error_share=0.3)

    run.refresh_from_db()
    (phase,) = RunConfig.model_validate(run.config).phase_configs
    assert phase.config.reward.max_error_share == 0.3


def test_files_of_a_run_that_is_resumed_as_it_was_stay(run, alice):
    live(run, "pause_itself")
    run.refresh_from_db()
    path = run_directory(run.id).config
    before = _stamps(path)

    resume_run(run=run, user=alice, max_error_share=0.2)

    run.refresh_from_db()
    write_snapshot(run)
    assert _stamps(path) == before


def _stamps(path: Path) -> list[int]:
    return [p.stat().st_ino for p in (path, path.with_name("rows.jsonl"))]
