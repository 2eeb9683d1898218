"""One life of a run: start its trainer, store what it says, heed what is asked."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, OperationalError

from dashboard.logs.facts import bind, bound
from dashboard.reporting.spans import span
from dashboard.runs.directory import RunDirectory, run_directory
from dashboard.runs.models import Run, RunState
from dashboard.training.asking import asked_by
from dashboard.training.changes import freeze_changes
from dashboard.training.checkpoints import SavedCheckpoint
from dashboard.training.ending import Ending, conclude, give_up, pause_for_room
from dashboard.training.follow import LogFollower
from dashboard.training.freeze import freeze
from dashboard.training.hang import HANG_SECONDS, PATIENCE_SECONDS, HangWatch
from dashboard.training.ingest import ingest
from dashboard.training.journal import Journal
from dashboard.training.lease import RENEW_SECONDS, Claim, Fenced, read_state, renew
from dashboard.training.lives import lose_life
from dashboard.training.logs.times import LogClock
from dashboard.training.memory_kills import MemoryKills
from dashboard.training.metering import count_renewal
from dashboard.training.origin import take_origin
from dashboard.training.outage import Patience
from dashboard.training.process import TrainerProcess, trainer_command
from dashboard.training.reading import read_events
from dashboard.training.system.sampler import SystemSampler
from dashboard.training.tail import read_tail
from dashboard.training.takeover import CannotResume, take_over
from trainer.events import Event, RunFailed, RunFinished, RunPaused, RunStopped

if TYPE_CHECKING:
    from typing import Protocol

    class CommandFactory(Protocol):
        def __call__(
            self, directory: RunDirectory, *, epoch: int, resume_from: Path | None
        ) -> list[str]: ...


LAST_WORDS = (RunFinished, RunFailed, RunStopped, RunPaused)

WISHES = {
    RunState.STOPPING: "a stop was requested",
    RunState.PAUSING: "a pause was requested",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    poll_seconds: float = 0.05  # the larger part of a point's way to the screen
    look_seconds: float = 1.0  # for a request to stop or pause
    renew_seconds: float = RENEW_SECONDS
    grace_seconds: float = 120.0  # to finish a step and save
    release_patience_seconds: float = 30.0  # for a database that is gone at shutdown
    hang_seconds: float = HANG_SECONDS  # without a sign of life
    hang_patience_seconds: float = PATIENCE_SECONDS


class CannotStart(Exception):
    """The run was failed or requeued before its trainer was started."""


class TooLate(Exception):
    """The worker shuts down and the database is gone: the lease will run out."""


class StoreRefused(Exception):
    """The database answered, but would not take what the log says."""


def supervise(
    claim: Claim,
    *,
    is_shutting_down: Callable[[], bool],
    command: CommandFactory = trainer_command,
    timing: Timing = Timing(),
) -> None:
    """Hold the run until its trainer's end, whatever that is."""
    about = {"run": claim.run_id, "epoch": claim.epoch, **asked_by(claim.run_id)}
    with bound(**about), span("life of a run"):
        _supervise(claim, is_shutting_down, command, timing)


def _supervise(
    claim: Claim,
    is_shutting_down: Callable[[], bool],
    command: CommandFactory,
    timing: Timing,
) -> None:
    directory = run_directory(claim.run_id)
    journal = Journal(
        directory.epoch(claim.epoch).supervisor_log,
        about=f"run {claim.run_id} epoch {claim.epoch}",
    )
    patience = Patience(journal)
    try:
        start = _prepare(claim, directory, journal, patience)
        argv = command(directory, epoch=claim.epoch, resume_from=start.resume_from)
        for reason in start.passed_over:
            argv += ["--passed-over", reason]
        life = Life(claim, directory, journal, patience, is_shutting_down, timing)
        life.live(argv)
    except CannotStart as error:
        journal.write(f"The run could not be started: {error}")
    except Fenced as error:
        journal.write(f"{error} Its trainer was ended and nothing more is written.")
    except TooLate:
        journal.write("The worker shuts down without the database; the lease runs out.")


@dataclass(frozen=True, slots=True)
class Start:
    resume_from: Path | None = None
    passed_over: Sequence[str] = ()  # why further checkpoints are damaged


def _prepare(
    claim: Claim, directory: RunDirectory, journal: Journal, patience: Patience
) -> Start:
    """Write the run's files and find where to resume; every step can be repeated."""
    found: list[Start] = []
    patience.insist(lambda: found.append(_start_of(claim, directory, journal)))
    return found[-1]


def _start_of(claim: Claim, directory: RunDirectory, journal: Journal) -> Start:
    damaged: list[str] = []
    runs = Run.objects.select_related("dataset_version__dataset")
    run = runs.filter(claim.guard, id=claim.run_id).first()
    if run is None:  # what is done with it below goes by its epoch
        raise Fenced(f"Run {claim.run_id} is not held by epoch {claim.epoch} any more.")
    journal.write(f"Claimed by {run.worker}.")
    checkpoint: SavedCheckpoint | None = None
    try:
        _make_room_for_its_log(directory, claim.epoch)
        freeze(run)
        if run.fork_step is not None:
            take_origin(run, directory)
        if run.fork_step is not None or claim.epoch > 1:
            renew(claim)  # which may have taken a while
            checkpoint = take_over(
                claim,
                directory,
                journal=journal,
                keep_alive=_Beat(lambda: renew(claim)),
                on_damaged=damaged.append,
            )
        freeze_changes(run, directory.epoch(claim.epoch).changes)
    except OSError as error:
        outcome = f"the run's files could not be prepared: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            pause_for_room(claim)
            raise CannotStart(outcome) from error
        lose_life(run, outcome=outcome)
        raise CannotStart(outcome) from error
    except (CannotResume, ValueError) as error:
        give_up(claim, str(error))
        raise CannotStart(str(error)) from error
    renew(claim)
    return Start(checkpoint.path if checkpoint else None, damaged)


def _make_room_for_its_log(directory: RunDirectory, epoch: int) -> None:
    """What a full disk refuses to a life is asked of it before the life begins."""
    files = directory.epoch(epoch)
    files.path.mkdir(parents=True, exist_ok=True)
    for path in (files.trainer_log, files.trainer_times):
        path.touch()


def _renew(claim: Claim) -> None:
    renew(claim)


class _Beat:
    """Calls an action when it is due, however often it is called itself."""

    def __init__(
        self, action: Callable[[], object], every: float = RENEW_SECONDS
    ) -> None:
        self._action = action
        self._every = every
        self._due = time.monotonic() + every

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._action()


class Life:
    """The trainer's process, its log, and the clocks of what must be done when."""

    def __init__(
        self,
        claim: Claim,
        directory: RunDirectory,
        journal: Journal,
        patience: Patience,
        is_shutting_down: Callable[[], bool],
        timing: Timing,
    ) -> None:
        self._claim = claim
        self._files = directory.epoch(claim.epoch)
        self._journal = journal
        self._is_shutting_down = is_shutting_down
        self._timing = timing
        self._patience = patience
        self._follower = LogFollower(self._files.events)
        self._step = 0
        self._last_word: Event | None = None
        self._asked_at: float | None = None
        self._was_killed = False
        self._was_released = False
        self._look = _Beat(self._look_at_run, timing.look_seconds)
        self._renew = _Beat(self._renew_lease, timing.renew_seconds)

    def live(self, argv: list[str]) -> None:
        log, times = self._files.trainer_log, self._files.trainer_times
        with TrainerProcess(argv, log=log) as trainer:
            self._trainer = trainer
            self._clock = LogClock(log, times=times)
            self._memory_kills = MemoryKills(trainer.pid)
            self._hang = HangWatch(
                trainer,
                self._files.pulse,
                self._journal,
                hang_seconds=self._timing.hang_seconds,
                patience_seconds=self._timing.hang_patience_seconds,
            )
            self._journal.write(f"Started the trainer as process {trainer.pid}.")
            try:
                with SystemSampler(
                    self._claim, pid=trainer.pid, read_step=lambda: self._step
                ):
                    self._follow_to_the_end()
            except StoreRefused as error:
                self._give_up(error)
                return
            status = trainer.reap()
        self._conclude(status)

    def _follow_to_the_end(self) -> None:
        while True:
            # Asked before reading, so that its last words are in what we read.
            has_exited = self._trainer.has_exited()
            self._note_time()
            num_lines = self._store_new_lines()
            if has_exited and num_lines == 0:
                return
            self._heed()
            if not num_lines:
                time.sleep(self._timing.poll_seconds)

    def _note_time(self) -> None:
        # Without it a log's lines have no times: no reason to stop a run.
        with suppress(OSError):
            self._clock.look()

    def _store_new_lines(self) -> int | None:
        """How many lines; None when the database cannot be reached."""
        lines = self._follower.read()
        if not lines:
            return 0
        events = read_events(lines, epoch=self._claim.epoch)
        if not self._patience.attempt(lambda: self._ingest(events)):
            return None
        self._follower.advance(lines)
        self._note(events)
        return len(events)

    def _ingest(self, events: list[Event]) -> None:
        try:
            ingest(self._claim, events)
        except (OperationalError, InterfaceError):
            raise
        except DatabaseError as error:
            raise StoreRefused(str(error).strip()) from error

    def _note(self, events: list[Event]) -> None:
        self._step = max(self._step, *(event.step for event in events))
        bind(step=self._step)
        words = [event for event in events if isinstance(event, LAST_WORDS)]
        self._last_word = words[-1] if words else self._last_word

    def _heed(self) -> None:
        """Requests to stop or pause, the lease, the grace period."""
        self._look()
        self._renew()
        if self._is_shutting_down():
            self._was_released = True
            self._ask_to_stop("the worker is shutting down")
            gone = self._patience.down_seconds > self._timing.release_patience_seconds
            if gone and self._trainer.has_exited():  # until then it may still save
                raise TooLate
        if self._is_overdue():
            self._journal.write("It did not stop in time and was killed.")
            self._was_killed = True
            self._trainer.kill()

    def _look_at_run(self) -> None:
        if num_bytes := self._trainer.cap_log():
            with suppress(OSError):
                self._clock.move(num_bytes)
        if not self._trainer.has_exited():
            self._memory_kills.look()
            self._hang.look()
        self._patience.attempt(self._read_wish)

    def _read_wish(self) -> None:
        wish = read_state(self._claim)
        if wish in WISHES:
            self._ask_to_stop(WISHES[wish])
        # Into this life's own folder, which only its own trainer reads.
        try:
            freeze_changes(Run(id=self._claim.run_id), self._files.changes)
        except OSError as error:
            self._journal.write(f"Changed settings could not be handed on: {error}")

    def _renew_lease(self) -> None:
        try:
            is_renewed = self._patience.attempt(lambda: _renew(self._claim))
        except Fenced:
            count_renewal("fenced")
            raise
        count_renewal("renewed" if is_renewed else "failed")

    def _ask_to_stop(self, why: str) -> None:
        if self._asked_at is None:
            self._journal.write(f"Asked the trainer to save and stop: {why}.")
            self._asked_at = time.monotonic()
            self._trainer.ask_to_stop()

    def _is_overdue(self) -> bool:
        if self._asked_at is None or self._was_killed:
            return False
        overdue = time.monotonic() - self._asked_at > self._timing.grace_seconds
        return overdue and not self._trainer.has_exited()

    def _conclude(self, status: int) -> None:
        ending = Ending(
            status=status,
            last_word=self._last_word,
            step=self._step,
            log_lines=read_tail(self._files.trainer_log, max_lines=50).lines,
            was_released=self._was_released,
            has_hung=self._hang.has_killed,
            was_out_of_memory=status == -signal.SIGKILL
            and not self._was_killed
            and not self._hang.has_killed
            and self._memory_kills.has_risen(),
        )
        self._journal.write(f"The trainer ended: {ending.outcome}.")
        self._insist(lambda: conclude(self._claim, ending))

    def _insist(self, action: Callable[[], None]) -> None:
        while not self._patience.attempt(action):
            gone = self._patience.down_seconds > self._timing.release_patience_seconds
            if gone and self._is_shutting_down():
                raise TooLate
            time.sleep(self._timing.poll_seconds)

    def _give_up(self, error: StoreRefused) -> None:
        reason = (
            f"The run's log could not be stored, so it was ended at step {self._step}: "
            f"{error}"
        )
        self._journal.write(reason)
        self._insist(lambda: give_up(self._claim, reason))
