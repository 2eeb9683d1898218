"""The trainer, replaced by a script that writes what a trainer writes.

It takes the real command and keeps the real contract: its log, its checkpoints, what it
receives between steps, how it ends. Its "weights" hold the course that led to them
(run, attempt, step), so what a run's history should be is known from what was resumed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from dashboard.supervision.checkpoints import NAME
from tests.dashboard.supervision.logs import LogBuilder, group, metrics_of
from trainer.config import ChangeList, RunConfig, change_settings
from trainer.events import (
    CheckpointSaved,
    GroupScored,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopped,
    SettingsChanged,
    StepFinished,
)

KEEP_LAST = 2
FINISHED, FAILED, STOPPED, PAUSED = 0, 1, 3, 4
ABOUT = {
    "num_parameters": 1_000,
    "num_train_rows": 8,
    "num_eval_rows": 0,
    "device": "cpu",
    "versions": {},
}


@dataclass(frozen=True, slots=True)
class Trained:
    """One step, and who trained it."""

    run_id: int
    attempt: int
    step: int


class ScriptedTrainer:
    """As dashboard.supervision.process.TrainerProcess, without a process."""

    all: ClassVar[list[ScriptedTrainer]] = []

    def __init__(
        self, command: Sequence[str], *, log: Path, variables: Mapping[str, str]
    ) -> None:
        assert "COHORT_HANG_SECONDS" in variables
        assert list(command[1:4]) == ["-m", "trainer", "run"]
        options = dict(zip(command[5::2], command[6::2], strict=True))
        self.out = Path(options["--out"])
        self.checkpoints = Path(options["--checkpoints"])
        self.attempt = int(options["--attempt"])
        self.run_id = int(self.out.parent.parent.name)
        self.resume_from = options.get("--resume-from")
        self.config = RunConfig.model_validate_json(Path(command[4]).read_bytes())
        self.course: list[Trained] = []
        self.log = LogBuilder(attempt=self.attempt)
        self.status: int | None = None
        self._is_stop_requested = False
        self._saved_step = 0
        self._received: set[int] = set()
        self._written = 0
        assert not (self.out / "events.jsonl").exists(), "two trainers of one attempt"
        log.touch()
        self.all.append(self)

    # The supervisor's calls.

    @property
    def pid(self) -> int:
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()

    def has_exited(self) -> bool:
        return self.status is not None

    def ask_to_stop(self) -> None:
        self._is_stop_requested = True

    def kill(self) -> None:
        if self.status is None:
            self.status = -signal.SIGKILL

    def reap(self) -> int:
        assert self.status is not None, "reaped alive"
        return self.status

    def cap_log(self) -> int:
        return 0

    # What it does of itself.

    @property
    def step(self) -> int:
        return self.course[-1].step if self.course else 0

    def history(self) -> list[tuple[int, int]]:
        """What its run's should be: each step, and who trained it."""
        return [
            (one.step, one.attempt) for one in self.course if one.run_id == self.run_id
        ]

    def train_on(self, saves: Sequence[bool]) -> None:
        """So many steps, unless it ends before."""
        for does_save in saves:
            if not self.has_exited():
                self.train(saves=does_save)

    def train(self, *, saves: bool) -> None:
        """Its next step, or its end where there is none."""
        if not self.log.events:
            self._begin()
        elif self._is_stop_requested:
            self._save()
            self._end(STOPPED, RunStopped, checkpoint=None)
        elif self.step >= self.config.optim.num_steps:
            self._save()
            self._end(FINISHED, RunFinished)
        else:
            self._step(saves=saves)

    def die(self, number: int, *, within: str) -> None:
        """Of a signal, within a line of its log, a save, or neither."""
        if within == "save":
            name = f".step-{self.step + 1:06d}-attempt-{self.attempt}.unfinished"
            (self.checkpoints / name).mkdir(exist_ok=True)
        if within == "line":
            with (self.out / "events.jsonl").open("ab") as file:
                file.write(b'{"type":"step_finished","line":')
        self.status = -number

    def fail(self) -> None:
        if self.log.events:
            self._end(FAILED, RunFailed, error="It broke.", details="…")

    def pause_itself(self) -> None:
        if self.log.events:
            self._save()
            fields: dict[str, Any] = {
                "reason": "All failed.",
                "share": 1.0,
                "limit": 0.2,
            }
            self._end(PAUSED, RunPaused, faults=[], checkpoint=None, **fields)

    def _begin(self) -> None:
        about = {"num_steps": self.config.optim.num_steps, **ABOUT}
        if self.resume_from is None:
            self.log.add(RunStarted, step=0, **about)
        else:
            self.course = read_course(Path(self.resume_from))
            self._saved_step = self.step
            where = self.resume_from
            self.log.add(RunResumed, step=self.step, checkpoint=where, **about)
        self._receive()
        self._flush()

    def _step(self, *, saves: bool) -> None:
        step = self.step + 1
        self.course.append(Trained(self.run_id, self.attempt, step))
        self.log.add(GroupScored, step=step, **group(0))
        metrics = {**metrics_of(step), "attempt": float(self.attempt)}
        self.log.add(StepFinished, step=step, metrics=metrics)
        if saves:
            self._save()
        self._receive()
        self._flush()

    def _receive(self) -> None:
        """As trainer.run.state does."""
        path = self.out / "changes.json"
        text = path.read_bytes() if path.exists() else b"{}"
        for change in ChangeList.model_validate_json(text).changes:
            due = self.step if change.after_step is None else change.after_step
            if change.number in self._received or due > self.step:
                continue
            self._received.add(change.number)
            self.config = change_settings(self.config, change.settings)
            if due == self.step:
                fields: dict[str, Any] = {
                    "number": change.number,
                    "settings": change.settings,
                }
                self.log.add(SettingsChanged, step=self.step, **fields)

    def _save(self) -> None:
        if self.step == self._saved_step:
            return
        name = f"step-{self.step:06d}-attempt-{self.attempt}"
        sha256, num_bytes = write_checkpoint(self.checkpoints / name, self.course)
        self._saved_step = self.step
        fields: dict[str, Any] = {"sha256": sha256, "num_bytes": num_bytes}
        self.log.add(CheckpointSaved, step=self.step, name=name, **fields)
        self._prune()

    def _prune(self) -> None:
        """As output.checkpoint does: what is newer than this attempt stays, or all."""
        if any(
            int(attempt.name) > self.attempt for attempt in self.out.parent.iterdir()
        ):
            return
        places = {
            (int(match[1]), int(match[2])): path
            for path in self.checkpoints.iterdir()
            if (match := NAME.fullmatch(path.name))
        }
        here = (self.step, self.attempt)
        own = sorted(at for at in places if at <= here and at[1] <= self.attempt)
        for at in own[:-KEEP_LAST]:
            shutil.rmtree(places[at])

    def _end(self, status: int, word: type[Any], **fields: Any) -> None:
        self.log.add(word, step=self.step, **fields)
        self._flush()
        self.status = status

    def _flush(self) -> None:
        with (self.out / "events.jsonl").open("ab") as file:
            file.write(b"".join(self.log.lines[self._written :]))
        self._written = len(self.log.events)


def write_checkpoint(folder: Path, course: Sequence[Trained]) -> tuple[str, int]:
    """Its manifest's SHA-256, and its bytes; it gets its name last, as the real one."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    values = [[one.run_id, one.attempt, one.step] for one in course]
    content = json.dumps(values).encode()
    (unfinished / "model").mkdir(parents=True, exist_ok=True)
    (unfinished / "model" / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    listed = {"model/model.safetensors": {"sha256": digest, "bytes": len(content)}}
    manifest = json.dumps({"files": listed}).encode()
    (unfinished / "manifest.json").write_bytes(manifest)
    unfinished.rename(folder)
    return hashlib.sha256(manifest).hexdigest(), len(content)


def read_course(folder: Path) -> list[Trained]:
    body = json.loads((folder / "model" / "model.safetensors").read_bytes())
    return [Trained(*one) for one in body]
