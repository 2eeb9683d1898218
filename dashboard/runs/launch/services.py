"""Queueing of runs and sweeps, from the start or from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from dashboard.accounts.members import check_runs
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.trash import lock_untrashed
from dashboard.project.errors import UserError
from dashboard.runs.charts.series import carried_to, totals_of
from dashboard.runs.checkpoints.listing import add_fork_point, fork_draft
from dashboard.runs.launch.base_models import lock_published
from dashboard.runs.launch.form import Launch
from dashboard.runs.models import Checkpoint, EvaluationSet, Run, Sweep
from dashboard.runs.queries import eval_rows, run_directory
from dashboard.runs.state import notify_workers


def launch_run(
    launch: Launch,
    *,
    team: Team,
    user: User | None,
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
    sweep: Sweep | None = None,
) -> Run:
    """Queue a run. The worker that first claims it writes its directory.

    A fork has the files of its checkpoint before any worker can claim it. ValueError:
    these files were deleted, a dataset is in the trash, a model was unpublished, or the
    team's quota is used up.
    """
    if fork_of is None:
        return _queue(launch, team, user, sweep=sweep, cloned_from=cloned_from)
    with fork_draft(fork_of) as files, transaction.atomic():
        run = _queue(launch, team, user, sweep=sweep, fork_of=fork_of)
        if files is not None:
            files.rename(run_directory(run.id).path)
    return run


@transaction.atomic
def launch_sweep(
    *,
    team: Team,
    user: User | None,
    name: str,
    launches: Sequence[Launch],
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
) -> Sweep:
    """Queue all of them, or none. ValueError as for a single run."""
    sweep = Sweep.objects.create(team=team, name=name, launched_by=user)
    for launch in launches:
        launch_run(
            launch,
            team=team,
            user=user,
            cloned_from=cloned_from,
            fork_of=fork_of,
            sweep=sweep,
        )
    num_runs = len(launches)
    record(team, user, "sweep.launched", sweep, name=name, num_runs=num_runs)
    return sweep


@transaction.atomic
def _queue(
    launch: Launch,
    team: Team,
    user: User | None,
    *,
    sweep: Sweep | None,
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
) -> Run:
    assert cloned_from is None or cloned_from.team_id == team.id, "another team's run"
    assert fork_of is None or fork_of.run.team_id == team.id, "another team's run"
    check_runs(team)
    _lock(launch, team)
    if fork_of is not None:
        _lock_parent(fork_of.run_id)
    run = Run.objects.create(
        team=team,
        owner=user,
        name=launch.name,
        config=launch.config.model_dump(mode="json"),
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label=launch.model_label,
        cloned_from=cloned_from,
        sweep=sweep,
        num_steps=launch.config.optim.num_steps,
        **({} if fork_of is None else _fork_point(fork_of)),
    )
    if fork_of is not None:
        add_fork_point(run, fork_of)
    EvaluationSet.objects.bulk_create(
        EvaluationSet(
            run=run,
            name=one.name,
            dataset_version=one.version,
            max_rows=one.max_rows,
        )
        for one in launch.evaluation_sets
    )
    fork_point = (
        {} if fork_of is None else {"fork_of": fork_of.run_id, "at": fork_of.step}
    )
    record(team, user, "run.launched", run, name=launch.name, **fork_point)
    transaction.on_commit(notify_workers)
    return run


def _lock(launch: Launch, team: Team) -> None:
    """Lock what the run needs against deletion until it is queued."""
    assert launch.recipe_version.recipe.team_id == team.id, "another team's recipe"
    sets = launch.evaluation_sets
    files = launch.config.evaluation.sets
    assert all(files[one.name] == eval_rows(one.name) for one in sets)
    versions = [launch.dataset_version, *(one.version for one in sets)]
    for version in versions:
        assert version.dataset.team_id == team.id, "another team's dataset"
    for version in sorted(versions, key=lambda version: version.dataset_id):
        lock_untrashed(version)  # in one order, so that two launches never deadlock
    lock_published(team, launch.config.model_dump(mode="json"))


def _lock_parent(run_id: int) -> None:
    """Lock the parent of a fork against the trash until the fork is queued."""
    parent = Run.objects.select_for_update(of=("self",), no_key=True).get(pk=run_id)
    if parent.trashed_at is not None:
        raise UserError(
            "runs.parent_in_trash",
            f"{parent.name} is in the trash. Restore it, or fork another run.",
        )


def _fork_point(checkpoint: Checkpoint) -> dict[str, Any]:
    carried = carried_to(checkpoint.run, checkpoint.step)
    return {
        "forked_from": checkpoint.run,
        "fork_step": checkpoint.step,
        "fork_checkpoint": checkpoint.name,
        "fork_sha256": checkpoint.sha256,
        "fork_totals": carried,
        "last_step": checkpoint.step,
        "summary": {"last": totals_of(carried), "best": {}},
    }
