"""Workers come, go and come back as zombies in any order; the history stays one."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dashboard.accounts.models import User
from dashboard.runs.changes import extend_run
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.models import ENDED, HELD, Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.supervision.ending import Ending, conclude
from dashboard.supervision.event_log import LogTailer, SupervisorLog, read_events
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim, LeaseLost, claim_run, reap, renew
from dashboard.supervision.takeover import take_over
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.factories import Launcher
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import Event, RunFinished, RunPaused

PAUSE = {
    "reason": "All failed.",
    "share": 1.0,
    "limit": 0.2,
    "faults": [],
    "checkpoint": None,
}
EXTENSIBLE = set(RunState) - {RunState.FAILED, RunState.STOPPING}


@dataclass
class Attempt:
    """A supervisor with its trainer, which may not know that it is a zombie."""

    claim: Claim
    step: int
    log: LogBuilder
    tailer: LogTailer = field(init=False)

    def __post_init__(self) -> None:
        path = run_directory(self.claim.run_id).attempt(self.claim.attempt).events
        self.tailer = LogTailer(path)
        self.log.started()
        self.log.write(path)


def course_of_events(launch: Launcher) -> type[RuleBasedStateMachine]:
    class CourseOfEvents(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.user: User = launch.user
            self.launch()

        def launch(self) -> None:
            self.run = launch()
            self.directory = run_directory(self.run.id)
            self.attempts: list[Attempt] = []
            self.end: str | None = None
            self.claim()

        @precondition(lambda self: self.end)
        @rule()
        def launch_another(self) -> None:
            self.launch()

        def owns(self, attempt: Attempt) -> bool:
            self.run.refresh_from_db()
            return attempt.claim.attempt == self.run.attempt and self.run.state in HELD

        def pick(self, data: st.DataObject) -> Attempt:
            return data.draw(st.sampled_from(self.attempts[::-1]))

        @precondition(lambda self: self.run.state == RunState.QUEUED)
        @rule()
        def claim(self) -> None:
            Run.objects.filter(id=self.run.id).update(not_before=None)
            claim = claim_run(self.run.id, "worker")
            if claim is None:
                return
            found = None
            if claim.attempt > 1:
                files = self.directory.attempt(claim.attempt)
                supervisor_log = SupervisorLog(files.supervisor_log, about="test")
                found = take_over(
                    claim,
                    self.directory,
                    supervisor_log=supervisor_log,
                    keep_alive=lambda: None,
                )
            step = found.step if found else 0
            self.attempts.append(
                Attempt(claim, step, LogBuilder(attempt=claim.attempt))
            )

        @precondition(lambda self: self.attempts)
        @rule(data=st.data(), saves=st.lists(st.booleans(), min_size=1, max_size=4))
        def train(self, data: st.DataObject, saves: list[bool]) -> None:
            attempt = self.pick(data)
            for does_save in saves:
                attempt.step += 1
                attempt.log.stepped(attempt.step, num_groups=1)
                if does_save:
                    save(self.directory, attempt.step, attempt=attempt.claim.attempt)
                    attempt.log.saved(attempt.step)
            attempt.log.write(attempt.tailer.path)

        @precondition(lambda self: self.attempts)
        @rule(data=st.data(), num_bytes=st.sampled_from([1, 1_000, 100_000]))
        def follow(self, data: st.DataObject, num_bytes: int) -> None:
            attempt = self.pick(data)
            lines = attempt.tailer.read(max_bytes=num_bytes)
            if not lines:
                return
            owned, before = self.owns(attempt), self.run.events.count()
            events = read_events(lines, attempt=attempt.claim.attempt)
            try:
                num_new = ingest(attempt.claim, events)
            except LeaseLost:
                assert not owned
                assert self.run.events.count() == before
            else:
                assert owned or num_new == 0
                attempt.tailer.advance(lines)

        @precondition(lambda self: self.attempts)
        @rule(data=st.data())
        def renew(self, data: st.DataObject) -> None:
            attempt = self.pick(data)
            owned = self.owns(attempt)
            try:
                renew(attempt.claim)
            except LeaseLost:
                assert not owned
            else:
                assert owned

        @precondition(lambda self: self.run.state in HELD)
        @rule()
        def lose_worker(self) -> None:
            held = Run.objects.filter(id=self.run.id, lease_until__isnull=False)
            held.update(lease_until=Now() - timedelta(seconds=1), num_losses=0)
            reap(grace=timedelta(0))

        @rule(is_meant=st.integers(0, 9).map(lambda n: n == 9))
        def stop(self, is_meant: bool) -> None:
            if is_meant:  # seldom, as little can happen afterwards
                request_stop(run=self.run, user=None)

        @rule(is_meant=st.integers(0, 9).map(lambda n: n == 9))
        def cancel(self, is_meant: bool) -> None:
            self.run.refresh_from_db()
            if is_meant and self.run.state not in ENDED:
                assert cancel_run(run=self.run, user=self.user)

        @precondition(lambda self: self.run.state in EXTENSIBLE)
        @rule()
        def extend(self) -> None:
            saved = self.run.checkpoints.filter(superseded_by=None).exists()
            may = saved or self.run.state not in ENDED
            further = max(self.run.num_steps, self.run.last_step) + 1
            try:
                extend_run(run=self.run, user=self.user, num_steps=further)
            except ValueError:
                assert not may
            else:
                assert may
                self.end = None

        @precondition(lambda self: self.run.state in HELD)
        @rule()
        def pause(self) -> None:
            request_pause(run=self.run, user=self.user)

        @precondition(lambda self: self.run.state == RunState.PAUSED)
        @rule()
        def resume(self) -> None:
            assert self.run.lease_until is None
            assert resume_run(run=self.run, user=self.user)

        @precondition(lambda self: self.attempts)
        @rule(
            data=st.data(),
            status=st.sampled_from([-9, 3, 4, -11, 75, 1, 0]),
            was_released=st.booleans(),
        )
        def trainer_ends(
            self, data: st.DataObject, status: int, was_released: bool
        ) -> None:
            attempt = self.pick(data)
            self.attempts.remove(attempt)
            owned = self.owns(attempt)
            if self.run.state == RunState.STARTING:
                return  # it ends before its first word: its lease runs out
            place = {"line": 1, "attempt": 1, "time": 0.0, "step": attempt.step}
            words: dict[int, Event] = {
                0: RunFinished.model_validate(place),
                4: RunPaused.model_validate({**place, **PAUSE}),
            }
            ending = Ending(
                status=status,
                last_word=words.get(status),
                step=attempt.step,
                log_lines=[],
                was_released=was_released,
            )
            try:
                conclude(attempt.claim, ending)
            except LeaseLost:
                assert not owned
            else:
                assert owned

        @invariant()
        def history_is_one(self) -> None:
            shown = self.run.steps.filter(superseded_by=None).order_by("step")
            steps = list(shown.values_list("step", "attempt"))
            assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
            attempts = [attempt for _, attempt in steps]
            assert attempts == sorted(attempts)
            self.run.refresh_from_db()
            assert self.run.last_step == len(steps)

        @invariant()
        def an_end_is_final_but_for_an_extension(self) -> None:
            self.run.refresh_from_db()  # an extension changes its row only
            assert self.end in (None, self.run.state)
            self.end = self.run.state if self.run.state in ENDED else None

        @invariant()
        def numbers_are_given_once(self) -> None:
            seqs = list(self.run.events.values_list("seq", flat=True))
            assert len(seqs) == len(set(seqs))
            assert max(seqs, default=0) <= self.run.seq

    return CourseOfEvents


@pytest.fixture
def quiet() -> settings:
    return settings(
        max_examples=max(2, settings().max_examples // 4),  # each takes a second
        stateful_step_count=30,
        phases=[Phase.generate],  # to shrink a failure takes minutes of SQL
    )


def test_history_stays_one_whatever_happens(launch, quiet):
    run_state_machine_as_test(course_of_events(launch), settings=quiet)
