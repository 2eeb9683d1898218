"""A scripted trainer (BEHAVIOUR OUT EPOCH) with the real one's interface."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.dashboard.training.logs import LogBuilder
from trainer.events import RunFailed, RunPaused, RunStopped, ScoreFault


class Script:
    def __init__(self, out: Path, attempt: int) -> None:
        self.log = LogBuilder(attempt=attempt)
        self.path = out / "events.jsonl"
        self.written = 0
        self.is_stop_requested = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.is_stop_requested = True

    def flush(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"".join(self.log.lines[self.written :]))
        self.written = len(self.log.events)

    def steps(self, *numbers: int) -> None:
        for number in numbers:
            self.log.stepped(number)
            self.flush()

    def finish(self) -> int:
        self.log.started()
        self.steps(1, 2, 3)
        self.log.saved(3).finished(3)
        self.flush()
        return 0

    def fail(self) -> int:
        self.log.started()
        self.log.add(RunFailed, step=0, error="No tokenizer.", details="…")
        self.flush()
        return 1

    def refuse(self) -> int:
        sys.stderr.write("optim.num_steps must be at least 1; got 0.\n")
        return 2

    def fall_silent(self) -> int:
        self.log.started()
        self.flush()
        return 0

    def crash(self) -> int:
        self.log.started()
        self.steps(1, 2)
        os.kill(os.getpid(), signal.SIGSEGV)
        return 0

    def be_killed(self) -> int:
        self.log.started()
        self.steps(1, 2)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def train_until_stopped(self) -> int:
        self.log.started()
        step = 0
        while not self.is_stop_requested:
            step += 1
            self.steps(step)
            time.sleep(0.05)
        self.log.saved(step).add(RunStopped, step=step, checkpoint="x")
        self.flush()
        return 3

    def load_until_stopped(self) -> int:
        sys.stdout.write("loading\n")
        sys.stdout.flush()
        while not self.is_stop_requested:
            time.sleep(0.01)
        self.log.add(RunStopped, step=0, checkpoint=None)
        self.flush()
        return 3

    def print_until_stopped(self) -> int:
        self.log.started()
        step = 0
        while not self.is_stop_requested:
            step += 1
            sys.stdout.write("x" * 2_000 + "\n")
            sys.stdout.flush()
            self.steps(step)
            time.sleep(0.02)
        self.log.saved(step).add(RunStopped, step=step, checkpoint="x")
        self.flush()
        return 3

    def pause_itself(self) -> int:
        self.log.started()
        self.steps(1, 2)
        self.log.saved(2).add(
            RunPaused,
            step=2,
            reason="100% of the scores of step 3 failed.",
            share=1.0,
            limit=0.2,
            faults=[ScoreFault(rule="judge", error="It is\0away.", count=16)],
            checkpoint="step-000002-attempt-1",
        )
        self.flush()
        return 4

    def wait_for_disk_space(self) -> int:
        self.log.started()
        self.steps(1, 2)
        return self._lack(needs_bytes=1)

    def wait_for_disk_space_on_request(self) -> int:
        self.log.started()
        self.steps(1, 2)
        while not self.is_stop_requested:
            time.sleep(0.05)
        return self._lack(needs_bytes=1)

    def wait_for_a_person_to_free_disk_space(self) -> int:
        self.log.started()
        self.steps(1, 2)
        return self._lack(needs_bytes=None)

    def _lack(self, *, needs_bytes: int | None) -> int:
        reason = "The disk is full."
        self.log.add(
            RunPaused, step=2, reason=reason, checkpoint=None, needs_bytes=needs_bytes
        )
        self.flush()
        return 4

    def save_slowly(self) -> int:
        self.log.started()
        self.steps(1, 2)
        while not self.is_stop_requested:
            time.sleep(0.05)
        time.sleep(0.2)
        self.log.saved(2).add(RunStopped, step=2, checkpoint="x")
        self.flush()
        return 3

    def be_killed_while_it_pauses(self) -> int:
        self.pause_itself()
        os.kill(os.getpid(), signal.SIGKILL)
        return 4

    def ignore_requests(self) -> int:
        self.log.started()
        self.steps(1)
        while True:
            time.sleep(0.05)

    def half_a_line(self) -> int:
        self.log.started()
        self.steps(1)
        with self.path.open("ab") as file:
            file.write(self.log.lines[1][:40])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


if __name__ == "__main__":
    behaviour, out, attempt = sys.argv[1:]
    sys.exit(getattr(Script(Path(out), int(attempt)), behaviour)())
