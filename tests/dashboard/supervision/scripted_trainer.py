"""A scripted trainer (BEHAVIOUR OUT ATTEMPT EVENTS) with the real one's interface.

EVENTS holds one event of each type as JSON; only the standard library is loaded.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Script:
    def __init__(self, out: Path, attempt: int, events: dict[str, Any]) -> None:
        self.attempt = attempt
        self.events = events
        self.path = out / "events.jsonl"
        self.lines: list[bytes] = []
        self.written = 0
        self.is_stop_requested = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.is_stop_requested = True

    def flush(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"".join(self.lines[self.written :]))
        self.written = len(self.lines)

    def add(self, kind: str, *, step: int, **fields: Any) -> None:
        line = len(self.lines) + 1
        event = self.events[kind] | fields
        event |= {"line": line, "attempt": self.attempt, "step": step}
        event["time"] += 1_000 * self.attempt + line
        self.lines.append(json.dumps(event).encode() + b"\n")

    def start(self) -> None:
        self.add("run_started", step=0)

    def steps(self, *numbers: int) -> None:
        for number in numbers:
            for index in range(2):
                self.add("group_scored", step=number, prompt_index=index)
            self.add("step_finished", step=number)
            self.flush()

    def save(self, step: int) -> None:
        name = f"step-{step:06d}-attempt-{self.attempt}"
        self.add("checkpoint_saved", step=step, name=name)

    def finish(self) -> int:
        self.start()
        self.steps(1, 2, 3)
        self.save(3)
        self.add("run_finished", step=3)
        self.flush()
        return 0

    def fail(self) -> int:
        self.start()
        self.add("run_failed", step=0)
        self.flush()
        return 1

    def refuse(self) -> int:
        sys.stderr.write("optim.num_steps must be at least 1; got 0.\n")
        return 2

    def fall_silent(self) -> int:
        self.start()
        self.flush()
        return 0

    def crash(self) -> int:
        self.start()
        self.steps(1, 2)
        os.kill(os.getpid(), signal.SIGSEGV)
        return 0

    def be_killed(self) -> int:
        self.start()
        self.steps(1, 2)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def train_until_stopped(self) -> int:
        self.start()
        step = 0
        while not self.is_stop_requested:
            step += 1
            self.steps(step)
            time.sleep(0.05)
        self.save(step)
        self.add("run_stopped", step=step)
        self.flush()
        return 3

    def load_until_stopped(self) -> int:
        sys.stdout.write("loading\n")
        sys.stdout.flush()
        while not self.is_stop_requested:
            time.sleep(0.01)
        self.add("run_stopped", step=0, checkpoint=None)
        self.flush()
        return 3

    def print_until_stopped(self) -> int:
        self.start()
        step = 0
        while not self.is_stop_requested:
            step += 1
            sys.stdout.write("x" * 2_000 + "\n")
            sys.stdout.flush()
            self.steps(step)
            time.sleep(0.02)
        self.save(step)
        self.add("run_stopped", step=step)
        self.flush()
        return 3

    def pause_itself(self) -> int:
        self.start()
        self.steps(1, 2)
        self.save(2)
        self.add("run_paused", step=2)
        self.flush()
        return 4

    def wait_for_disk_space(self) -> int:
        self.start()
        self.steps(1, 2)
        return self._lack(needs_bytes=1)

    def wait_for_disk_space_on_request(self) -> int:
        self.start()
        self.steps(1, 2)
        while not self.is_stop_requested:
            time.sleep(0.05)
        return self._lack(needs_bytes=1)

    def wait_for_a_person_to_free_disk_space(self) -> int:
        self.start()
        self.steps(1, 2)
        return self._lack(needs_bytes=None)

    def _lack(self, *, needs_bytes: int | None) -> int:
        self.add(
            "run_paused",
            step=2,
            reason="The disk is full.",
            checkpoint=None,
            share=None,
            limit=None,
            faults=[],
            needs_bytes=needs_bytes,
        )
        self.flush()
        return 4

    def save_slowly(self) -> int:
        self.start()
        self.steps(1, 2)
        while not self.is_stop_requested:
            time.sleep(0.05)
        time.sleep(0.2)
        self.save(2)
        self.add("run_stopped", step=2)
        self.flush()
        return 3

    def be_killed_while_it_pauses(self) -> int:
        self.pause_itself()
        os.kill(os.getpid(), signal.SIGKILL)
        return 4

    def ignore_requests(self) -> int:
        self.start()
        self.steps(1)
        while True:
            time.sleep(0.05)

    def half_a_line(self) -> int:
        self.start()
        self.steps(1)
        with self.path.open("ab") as file:
            file.write(self.lines[1][:40])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


if __name__ == "__main__":
    behaviour, out, attempt, events = sys.argv[1:]
    sys.exit(getattr(Script(Path(out), int(attempt), json.loads(events)), behaviour)())
