"""Training workers: each takes messages, one run at a time, by the real task.

And what stands in for all that is not theirs: the broker, time, the trainer's process.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context

from dashboard.jobs.schedule import DAY_SECONDS
from dashboard.runs import state
from dashboard.supervision import supervisor, tasks, watchdog, workers
from dashboard.supervision.lease import Claim
from tests.dashboard.supervision.machine.actors import Actor, Cast, current
from tests.dashboard.supervision.machine.trainers import ScriptedTrainer

NO_PROCESS = 2**22 + 1  # larger than any pid


@dataclass(slots=True)
class Supervisor:
    """A worker's process; `work` is its one slot's task, None while it is idle."""

    name: str
    work: Actor | None = None
    is_up: bool = True

    @property
    def is_free(self) -> bool:
        return self.is_up and self.work is None

    def take_message(self, cast: Cast) -> Actor:
        def work() -> None:
            request = Context(hostname=self.name, args=(), kwargs={})
            tasks.work.request_stack.push(request)
            try:
                tasks.work.run()
            finally:
                tasks.work.request_stack.pop()

        self.work = cast.enter(self.name, work)
        return self.work

    def kill(self) -> None:
        """kill -9 of the whole worker."""
        if self.work is not None:
            self.work.kill()
        self.end()

    def end(self) -> None:
        self.work, self.is_up = None, False


class Broker:
    """Redis, as far as messages go: it may lose them and bring them twice."""

    def __init__(self) -> None:
        self.num_messages = 0

    def wake(self, task: str, *, queue: str, expires: int, count: int = 1) -> None:
        assert (task, queue, expires) == ("training.work", "training", DAY_SECONDS)
        self.num_messages += count

    # The part of a Celery app and its connection that the dispatcher uses.

    def send_task(self, task: str, *, queue: str, expires: int) -> None:
        self.wake(task, queue=queue, expires=expires)

    @contextmanager
    def connection_for_write(self) -> Iterator[Any]:
        yield self

    @property
    def default_channel(self) -> Any:
        return self

    @property
    def client(self) -> Any:
        return self

    def llen(self, _queue: str) -> int:
        return self.num_messages


class Clock:
    """Stands in for the module `time` where supervisors wait."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, _seconds: float) -> None:
        current().give_back()


def replace_surroundings(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, broker: Broker
) -> None:
    """The trainer's process, time, the broker, and who listens; nothing else."""
    monkeypatch.setattr(supervisor, "TrainerProcess", ScriptedTrainer)
    monkeypatch.setattr(supervisor, "SystemSampler", lambda *_, **__: nullcontext())
    for module in (watchdog, watchdog, supervisor):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(state, "wake_workers", broker.wake)
    monkeypatch.setattr("dashboard.live.pubsub.notify_group", lambda *_: None)
    hardware = {"takes": "any", "gpus": []}
    monkeypatch.setattr(workers, "read_hardware", lambda: hardware)
    # Of a worker that starts again, so the process of its name is always a dead one.
    monkeypatch.setattr(workers, "os", SimpleNamespace(getpid=lambda: NO_PROCESS))
    monkeypatch.setattr(
        tasks.shutdown, "is_announced", lambda: current().is_shutting_down
    )
    real = tasks.supervise

    def supervise_and_report(claim: Claim, **options: Any) -> None:
        current().claims.append(claim)
        real(claim, **options)

    monkeypatch.setattr(tasks, "supervise", supervise_and_report)
