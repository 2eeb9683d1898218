"""How things happen to runs: whose turn it is, and what is looked at behind it.

What people do goes by the services that their pages call.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, cast

from django.db import OperationalError, connection

from dashboard.accounts.models import User
from dashboard.runs.bulk_actions import act
from dashboard.runs.changes import change_run, extend_run
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.launch.launching import Launch, launch_run
from dashboard.runs.models import ENDED, Checkpoint, Priority, Run, RunState
from dashboard.runs.queue.changes import hold_run, release_run, set_priority
from dashboard.runs.trash import delete_run
from dashboard.supervision import lease
from dashboard.supervision.lease import drain, undrain
from dashboard.supervision.models import Worker
from dashboard.supervision.tasks import send_work
from dashboard.supervision.workers import reclaim, register
from tests.dashboard.supervision.factories import Launcher
from tests.dashboard.supervision.machine import ledger
from tests.dashboard.supervision.machine.actors import Actor, Cast, Fault
from tests.dashboard.supervision.machine.invariants import (
    Watch,
    check_run,
    check_writer,
)
from tests.dashboard.supervision.machine.supervisors import Broker, Clock, Supervisor
from tests.dashboard.supervision.machine.trainers import ScriptedTrainer
from trainer.config import RunConfig

NAMES = ("worker-1", "worker-2", "worker-3")
ROUND_SECONDS = 15

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
ACTS_OF_PEOPLE: Mapping[str, Act] = MappingProxyType(
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
    requested = Launch(
        name="fork",
        config=RunConfig.model_validate(config),
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label="tiny",
    )
    return launch_run(requested, team=launch.team, user=launch.user, fork_of=checkpoint)


def drain_or_not(worker: str, launch: Launcher) -> bool:
    found = Worker.objects.get(name=worker)
    act = drain if found.drained_at is None else undrain
    return act(found, team=launch.team, user=launch.user)


class Play:
    """Workers, and everybody else who comes and goes."""

    def __init__(
        self, launch: Launcher, cast: Cast, clock: Clock, broker: Broker
    ) -> None:
        ScriptedTrainer.all.clear()
        end_what_is_left()
        broker.num_messages = 0
        self.launch = launch
        self.cast = cast
        self.clock = clock
        self.broker = broker
        self.watch = Watch()
        self.touched: set[int] = set()
        self.is_broken = False  # what comes after a finding only hides it
        self.supervisors = [Supervisor(name) for name in NAMES]
        for one in self.supervisors:
            register(one.name, num_slots=1)
        Worker.objects.update(drained_at=None)
        self.first_run = launch(optim={"num_steps": 24}).pk
        self.deliver(self.supervisors[0])
        for _ in range(3):
            self.pass_a_while(saves=False)

    def runs(self) -> Any:
        return Run.objects.filter(pk__gte=self.first_run).order_by("pk")

    def unfinished(self) -> list[Run]:
        return list(self.runs().exclude(state__in=(*ENDED, RunState.PAUSED)))

    def trainers(self) -> list[ScriptedTrainer]:
        return [one for one in ScriptedTrainer.all if not one.has_exited()]

    def trainers_of(self, work: Actor) -> list[ScriptedTrainer]:
        attempts = [(claim.run_id, claim.attempt) for claim in work.claims]
        return [one for one in self.trainers() if (one.run_id, one.attempt) in attempts]

    def works(self) -> list[Actor]:
        """Of the supervisors that can act, stalled ones too."""
        return [one.work for one in self.supervisors if one.work and one.work.is_ready]

    def strays(self) -> list[Actor]:
        """Who is stalled, and no supervisor's work."""
        works = [one.work for one in self.supervisors]
        return [one for one in self.cast.present if one.is_ready and one not in works]

    # Turns.

    def perform(
        self, name: str, body: Callable[[], object], fault: Fault = None
    ) -> Actor:
        actor = self.cast.enter(name, body)
        actor.faults.arm(fault)
        return self.turn(actor)

    def reap(self, fault: Fault = None) -> Actor:
        return self.perform("reap", lambda: lease.reap(grace=timedelta(0)), fault)

    def dispatch(self, fault: Fault = None) -> None:
        app = cast("Any", self.broker)
        self.perform("dispatch", lambda: send_work(app), fault)

    def deliver(self, one: Supervisor, fault: Fault = None) -> Actor:
        self.broker.num_messages = max(0, self.broker.num_messages - 1)
        work = one.take_message(self.cast)
        work.faults.arm(fault)
        return self.turn(work)

    def start(self, one: Supervisor, fault: Fault = None) -> None:
        def begin() -> None:
            reclaim(one.name)
            register(one.name, num_slots=1)

        one.is_up = True
        self.perform("start", begin, fault)

    def kill(self, one: Supervisor) -> None:
        trainers = self.trainers_of(one.work) if one.work else []
        one.kill()
        for trainer in trainers:  # it ends with its supervisor
            trainer.kill()
        self._observe()

    def turn(self, actor: Actor) -> Actor:
        with self._judging():
            actor.turn()
        self._observe()
        return actor

    def _observe(self) -> None:
        """Until no actor can continue."""
        with self._judging():
            self._check()
        while passed := [one for one in self.cast.present if one.has_passed]:
            self.turn(passed[0])

    def _check(self) -> None:
        """What was written meanwhile, and by whom; who has ended, and how."""
        by_number = {one.number: one for one in self.cast.present}
        entries = self.watch.look()
        self.touched |= {entry.run_id for entry in entries}
        for entry in entries:
            if entry.actor:
                check_writer(by_number[entry.actor], entry)
        for actor in by_number.values():
            if actor.is_done:
                self._see_off(actor)

    def _see_off(self, actor: Actor) -> None:
        self.cast.present.remove(actor)
        for one in self.supervisors:
            if one.work is actor:
                one.work = None
                if actor.was_killed or actor.is_shutting_down:
                    one.end()
        if not is_excused(actor):
            raise AssertionError(f"{actor.name} ended badly") from actor.error

    # Time.

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        ledger.pass_time(seconds)
        self.cast.pass_time(seconds)
        self._observe()

    def pass_a_while(self, *, saves: bool, num_steps: int = 1) -> None:
        """In which everybody who is there does what is theirs."""
        self.reap()
        self.dispatch()
        for one in self.supervisors:
            if one.is_free and self.broker.num_messages:
                self.deliver(one)
        for trainer in self.trainers():
            trainer.train_on([saves] * num_steps)
        for work in self.works():
            if work.is_ready and not (work.is_stalled or work.is_asleep):
                self.turn(work)
        self.check_touched()
        self.pass_time(ROUND_SECONDS)

    def check_touched(self) -> None:
        touched, self.touched = self.touched, set()
        with self._judging():
            for run in Run.objects.filter(pk__in=touched):
                check_run(run)

    @contextmanager
    def _judging(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.is_broken = True
            raise

    # The end.

    def cease_faults(self) -> None:
        """Every stalled actor continues, so that others that wait for it do."""
        for actor in self.cast.present:
            actor.faults.cease()
            actor.is_asleep = False
        while stalled := [one for one in self.cast.present if one.is_stalled]:
            self.turn(stalled[0])
        blocked = [one.name for one in self.cast.present if one.is_blocked]
        assert not blocked, f"{blocked} wait for locks that no one holds"
        Worker.objects.update(drained_at=None)
        self.runs().update(on_hold=False)

    def kill_all(self) -> None:
        for actor in list(self.cast.present):
            actor.kill()
        left = [one.name for one in self.cast.present if not one.is_done]
        self.cast.present.clear()
        assert not left, f"{left} outlived their ends"


def is_excused(actor: Actor) -> bool:
    """It was refused, killed or cut off, or waited for too long."""
    error = actor.error
    if error is None or actor.was_killed or isinstance(error, ValueError):
        return True
    was_lost = actor.faults.was_cut or actor.was_timed_out
    return isinstance(error, OperationalError) and was_lost


def end_what_is_left() -> None:
    """Of an example that failed: it would stand in line before the next one's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_run SET state = 'stopped', lease_until = NULL, "
            "finished_at = pg_catalog.now() + interval '1 year' "
            "WHERE state NOT IN ('finished', 'stopped', 'failed')"
        )
