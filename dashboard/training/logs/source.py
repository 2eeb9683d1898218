"""Which log of a run is meant, and why it may be missing here."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dashboard.runs.models import Epoch, Run
from dashboard.runs.queries import EpochDirectory, run_directory
from dashboard.training.logs.reading import Line
from dashboard.training.logs.times import LogTimes, stamp_of
from dashboard.training.models import Worker

# Both: the trainer's lines with its supervisor's among them, by their times.
SOURCES = {"both": "Both", "trainer": "Trainer", "supervisor": "Worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the trainer printed in a life, or what its supervisor did, or both."""

    name: str
    epoch: Epoch
    path: Path  # of both: the trainer's
    files: EpochDirectory

    @property
    def has_times(self) -> bool:
        """The trainer's lines; those of an older Cohort have none."""
        return self.files.trainer_times.is_file() or not self.path.is_file()

    def times_of(self, lines: Sequence[Line]) -> list[float | None]:
        if self.name == "supervisor":
            return [stamp_of(line.text) for line in lines]
        times = LogTimes(self.files.trainer_times)
        return times.of_lines([line.at for line in lines], log=self.path)

    @property
    def missing(self) -> str:
        """A sentence when the file is not here; one query then."""
        if self.path.is_file():
            return ""
        worker = Worker.objects.filter(name=self.epoch.worker).first()
        if worker is not None and worker.host != socket.gethostname():
            return (
                f"This log is on another machine: {worker.name} runs on {worker.host}, "
                f"and {self.path} is not to be seen on this server. Give both the same "
                "COHORT_DATA folder to read it here."
            )
        return "Nothing has been written to this log yet."


def find_source(run: Run, query: Mapping[str, str]) -> Source | None:
    """?source=&epoch=, or the trainer's last life; None before the first."""
    epochs = {str(epoch.number): epoch for epoch in run.epochs.order_by("number")}
    if not epochs:
        return None
    last = list(epochs.values())[-1]
    epoch = epochs.get(query.get("epoch", ""), last)
    files = run_directory(run.id).epoch(epoch.number)
    both = Source(name="both", epoch=epoch, path=files.trainer_log, files=files)
    name = query.get("source", "both" if both.has_times else "trainer")
    name = name if name in SOURCES else "trainer"
    path = files.supervisor_log if name == "supervisor" else files.trainer_log
    return replace(both, name=name, path=path)
