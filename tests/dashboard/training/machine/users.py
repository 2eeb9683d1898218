"""What people do to runs, by the services that their pages call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dashboard.accounts.models import User
from dashboard.runs.actions import act
from dashboard.runs.changing import change_run, extend_run
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.launch.forms import Launch
from dashboard.runs.launching import launch_run
from dashboard.runs.models import Checkpoint, Priority, Run
from dashboard.runs.queue_changes import hold_run, move_run, release_run, set_priority
from dashboard.runs.trash import delete_run
from dashboard.training.draining import drain, undrain
from dashboard.training.models import Worker
from tests.dashboard.training.factories import Launcher
from trainer.config import RunConfig

Act = Callable[[Run, User], object]


def _by_list(name: str) -> Act:
    def apply(run: Run, user: User) -> object:
        return act(name, Run.objects.filter(pk=run.pk), team=run.team, user=user)

    return apply


def _extend(run: Run, user: User) -> None:
    extend_run(run=run, user=user, num_steps=max(run.num_steps, run.last_step) + 1)


def _save_more_often(run: Run, user: User) -> None:
    every = 1 + run.changes.count() % 3
    change_run(run=run, user=user, settings={"checkpoint.every_steps": every})


def _prioritize(priority: Priority) -> Act:
    return lambda run, user: set_priority(run=run, user=user, priority=priority)


# What is refused raises ValueError or returns False: a sentence, on a page.
ACTS: Mapping[str, Act] = MappingProxyType(
    {
        "stop": lambda run, user: request_stop(run=run, user=user),
        "cancel": lambda run, user: cancel_run(run=run, user=user),
        "pause": lambda run, user: request_pause(run=run, user=user),
        "resume": lambda run, user: resume_run(run=run, user=user),
        "extend": _extend,
        "change": _save_more_often,
        "raise": _prioritize(Priority.HIGH),
        "lower": _prioritize(Priority.LOW),
        "hold": lambda run, user: hold_run(run=run, user=user),
        "release": lambda run, user: release_run(run=run, user=user),
        "move": lambda run, user: move_run(run=run, user=user, where="front"),
        "trash": _by_list("trash"),
        "restore": _by_list("restore"),
        "lock": _by_list("lock"),
        "unlock": _by_list("unlock"),
        "archive": _by_list("archive"),
        "stop by list": _by_list("stop"),
        "delete": delete_run,
    }
)

ENDING = frozenset({"stop", "cancel", "stop by list", "delete"})


def fork(checkpoint: Checkpoint, launch: Launcher, *, num_steps: int) -> Run:
    config = {**checkpoint.run.config, "optim": {"num_steps": num_steps}}
    asked = Launch(
        name="fork",
        config=RunConfig.model_validate(config),
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label="tiny",
    )
    return launch_run(asked, team=launch.team, user=launch.user, fork_of=checkpoint)


def drain_or_not(worker: str, launch: Launcher) -> bool:
    found = Worker.objects.get(name=worker)
    act = drain if found.drained_at is None else undrain
    return act(found, team=launch.team, user=launch.user)
