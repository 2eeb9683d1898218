"""One attempt of a run: starts its trainer, stores its events, follows requests."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from django.db import DatabaseError, InterfaceError, OperationalError

from dashboard.observability.logging import bind, bound
from dashboard.observability.tracing import span
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory, run_directory
from dashboard.supervision.database_retry import DatabaseRetry, TooLate
from dashboard.supervision.ending import Ending, conclude, give_up
from dashboard.supervision.event_log import (
    LogTailer,
    SupervisorLog,
    read_events,
    read_tail,
)
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import (
    RENEW_SECONDS,
    REQUESTS,
    Claim,
    LeaseLost,
    read_state,
    renew,
)
from dashboard.supervision.log_reading import LogClock
from dashboard.supervision.process import TrainerProcess, trainer_command, write_changes
from dashboard.supervision.startup import CannotStart, originating_request, prepare
from dashboard.supervision.system_samples import SystemSampler
from dashboard.supervision.watchdog import (
    HANG_SECONDS,
    PATIENCE_SECONDS,
    MemoryKills,
    Periodic,
    Watchdog,
)
from trainer.events import Event, RunFailed, RunFinished, RunPaused, RunStopped

# On a cluster with a storage, a checkpoint is uploaded by a node and copied from there.
UPLOAD_GRACE_SECONDS = 1_800.0
LAST_WORDS = (RunFinished, RunFailed, RunStopped, RunPaused)


class CommandFactory(Protocol):
    def __call__(
        self, directory: RunDirectory, *, attempt: int, resume_from: Path | None
    ) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    poll_seconds: float = 0.05  # the larger part of a point's way to the screen
    check_seconds: float = 1.0  # for a request to stop or pause
    renew_seconds: float = RENEW_SECONDS
    grace_seconds: float = 120.0  # to finish a step and save
    release_patience_seconds: float = 30.0  # for a missing database at shutdown
    hang_seconds: float = HANG_SECONDS  # without a sign of life
    hang_patience_seconds: float = PATIENCE_SECONDS


class StoreRefused(Exception):
    """The database responded, but rejected the events."""


def supervise(
    claim: Claim,
    *,
    is_shutting_down: Callable[[], bool],
    command: CommandFactory = trainer_command,
    timing: Timing = Timing(),
) -> None:
    """Hold the run until its trainer exits."""
    about = {
        "run": claim.run_id,
        "attempt": claim.attempt,
        **originating_request(claim.run_id),
    }
    with bound(**about), span("run attempt"):
        directory = run_directory(claim.run_id)
        supervisor_log = SupervisorLog(
            directory.attempt(claim.attempt).supervisor_log,
            about=f"run {claim.run_id} attempt {claim.attempt}",
        )

        def is_too_late(down_seconds: float) -> bool:
            return down_seconds > timing.release_patience_seconds and is_shutting_down()

        try:
            start = prepare(
                claim,
                directory,
                supervisor_log,
                is_too_late=is_too_late,
                check_seconds=timing.check_seconds,
            )
            if start.variables.get("COHORT_RAY_STORAGE"):
                timing = replace(timing, grace_seconds=UPLOAD_GRACE_SECONDS)
            argv = command(
                directory, attempt=claim.attempt, resume_from=start.resume_from
            )
            for reason in start.passed_over:
                argv += ["--passed-over", reason]
            Attempt(
                claim, directory, supervisor_log, is_shutting_down, is_too_late, timing
            ).run(argv, start.variables)
        except CannotStart as error:
            supervisor_log.write(f"Failed to start the run: {error}")
        except LeaseLost as error:
            supervisor_log.write(
                f"{error} Cohort killed the trainer and stopped writing."
            )
        except TooLate:
            supervisor_log.write("The worker shut down first; the lease will expire.")


class Attempt:
    """The trainer's process, its log, and the clocks of what must be done when."""

    def __init__(
        self,
        claim: Claim,
        directory: RunDirectory,
        supervisor_log: SupervisorLog,
        is_shutting_down: Callable[[], bool],
        is_too_late: Callable[[float], bool],
        timing: Timing,
    ) -> None:
        self._claim = claim
        self._files = directory.attempt(claim.attempt)
        self._log = supervisor_log
        self._is_shutting_down = is_shutting_down
        self._is_too_late = is_too_late
        self._timing = timing
        self._storing = DatabaseRetry(supervisor_log, "Storing the log")
        self._reading = DatabaseRetry(supervisor_log, "Reading requests for the run")
        self._renewing = DatabaseRetry(supervisor_log, "Renewing the lease")
        self._follower = LogTailer(self._files.events)
        self._step = 0
        self._last_word: Event | None = None
        self._stop_requested_at: float | None = None
        self._was_killed = False
        self._was_released = False
        self._check = Periodic(self._check_run, timing.check_seconds)
        self._renew = Periodic(self._renew_lease, timing.renew_seconds)

    def run(self, argv: list[str], variables: Mapping[str, str]) -> None:
        log, times = self._files.trainer_log, self._files.trainer_times
        hang = {"COHORT_HANG_SECONDS": f"{self._timing.hang_seconds:g}"}
        variables = {**variables, **hang}
        with TrainerProcess(argv, log=log, variables=variables) as trainer:
            self._trainer = trainer
            self._clock = LogClock(log, times=times)
            self._memory_kills = MemoryKills(trainer.pid)
            self._hang = Watchdog(
                trainer,
                self._files.pulse,
                self._log,
                hang_seconds=self._timing.hang_seconds,
                patience_seconds=self._timing.hang_patience_seconds,
            )
            self._log.write(f"Started the trainer as process {trainer.pid}.")
            try:
                with SystemSampler(
                    self._claim, pid=trainer.pid, read_step=lambda: self._step
                ):
                    self._follow_to_the_end()
            except StoreRefused as error:
                reason = (
                    "Failed to store the run's log, so Cohort ended the run at step "
                    f"{self._step}: {error}"
                )
                self._log.write(reason)
                self._insist(lambda: give_up(self._claim, reason))
                return
            status = trainer.reap()
        ending = Ending(
            status=status,
            last_word=self._last_word,
            step=self._step,
            log_lines=read_tail(self._files.trainer_log, max_lines=50),
            was_released=self._was_released,
            has_hung=self._hang.has_killed,
            was_out_of_memory=status == -signal.SIGKILL
            and not self._was_killed
            and not self._hang.has_killed
            and self._memory_kills.has_risen(),
        )
        self._log.write(f"The trainer exited: {ending.outcome}.")
        self._insist(lambda: conclude(self._claim, ending))

    def _follow_to_the_end(self) -> None:
        while True:
            # Checked before reading, so that the last events are included.
            has_exited = self._trainer.has_exited()
            # Without it a log's lines have no times: no reason to stop a run.
            with suppress(OSError):
                self._clock.update()
            num_lines = self._store_new_lines()
            if has_exited and num_lines == 0:
                return
            self._check()
            self._renew()
            if self._is_shutting_down():
                self._was_released = True
                self._request_stop("the worker is shutting down")
                is_too_late = self._is_too_late(self._storing.down_seconds)
                # Until it has exited, it may still save.
                if is_too_late and self._trainer.has_exited():
                    raise TooLate
            is_overdue = (
                self._stop_requested_at is not None
                and not self._was_killed
                and time.monotonic() - self._stop_requested_at
                > self._timing.grace_seconds
            )
            if is_overdue and not self._trainer.has_exited():
                self._log.write("The trainer did not stop in time and was killed.")
                self._was_killed = True
                self._trainer.kill()
            if not num_lines:
                time.sleep(self._timing.poll_seconds)

    def _store_new_lines(self) -> int | None:
        """Store new lines; how many, None if the database does not accept them now."""
        lines = self._follower.read()
        if not lines:
            return 0
        events = read_events(lines, attempt=self._claim.attempt)
        if not self._storing.attempt(lambda: self._ingest(events)):
            return None
        self._follower.advance(lines)
        self._step = max(self._step, *(event.step for event in events))
        bind(step=self._step)
        words = [event for event in events if isinstance(event, LAST_WORDS)]
        self._last_word = words[-1] if words else self._last_word
        return len(events)

    def _ingest(self, events: list[Event]) -> None:
        try:
            ingest(self._claim, events)
        except (OperationalError, InterfaceError):
            raise
        except DatabaseError as error:
            raise StoreRefused(str(error).strip()) from error

    def _check_run(self) -> None:
        if num_bytes := self._trainer.cap_log():
            with suppress(OSError):
                self._clock.move(num_bytes)
        if not self._trainer.has_exited():
            self._memory_kills.check()
            self._hang.check()
        self._reading.attempt(self._read_request)

    def _read_request(self) -> None:
        request = read_state(self._claim)
        if request in REQUESTS:
            self._request_stop(REQUESTS[request])
        # Into this attempt's own folder, which only its own trainer reads.
        try:
            write_changes(Run(id=self._claim.run_id), self._files.changes)
        except OSError as error:
            self._log.write(f"Failed to pass changed settings to the trainer: {error}")

    def _renew_lease(self) -> None:
        silent_for = self._hang.silent_for
        self._renewing.attempt(lambda: renew(self._claim, silent_for=silent_for))

    def _request_stop(self, why: str) -> None:
        if self._stop_requested_at is None:
            self._log.write(f"Asked the trainer to save and stop: {why}.")
            self._stop_requested_at = time.monotonic()
            self._trainer.ask_to_stop()

    def _insist(self, action: Callable[[], None]) -> None:
        DatabaseRetry(self._log, "Storing the run's end").insist(
            action, is_too_late=self._is_too_late, meanwhile=self._renew
        )
