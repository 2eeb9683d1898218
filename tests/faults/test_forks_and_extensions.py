"""A fork equals its parent, and an extension continues its run, with real trainers."""

import pytest

from dashboard.runs.changes import extend_run
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import Run, RunState
from dashboard.supervision.lease import claim_run
from dashboard.supervision.supervisor import supervise
from tests.faults.histories import stored_series
from trainer.config import RunConfig

pytestmark = pytest.mark.faults


def run_attempt(run: Run) -> Run:
    claim = claim_run(run.id, "here")
    assert claim is not None
    supervise(claim, is_shutting_down=lambda: False)
    ended = Run.objects.get(id=run.id)
    assert ended.state == RunState.FINISHED, ended.fail_reason
    return ended


def test_a_fork_equals_its_parent_and_an_extension_an_uninterrupted_run(
    launch_tiny, undisturbed, alice
):
    run = run_attempt(launch_tiny(num_steps=60))
    middle = run.checkpoints.get(step=40)

    fork = Launch(
        name="fork",
        config=RunConfig.model_validate(run.config),
        dataset_version=run.dataset_version,
        recipe_version=run.recipe_version,
        model_label="tiny",
    )
    child = launch_run(fork, team=run.team, user=alice, fork_of=middle)
    run_attempt(child)
    extend_run(run=run, user=alice, num_steps=80)
    longer = run_attempt(run)

    # Its totals continue from its parent's.
    assert stored_series(child) == {
        step: undisturbed.series[step] for step in range(41, 61)
    }
    assert longer.changes.get().applied_step == 60
    assert longer.attempts.get(number=2).from_step == 60
    assert stored_series(longer) == {
        step: undisturbed.series[step] for step in range(1, 81)
    }
