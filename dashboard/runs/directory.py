"""The files of a run: what the trainer reads, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

ROWS = "rows.jsonl"  # the dataset version as it was at launch


def eval_rows(name: str) -> str:
    """The file of an evaluation set, beside the rows."""
    return f"eval-{name}.jsonl"


@dataclass(frozen=True, slots=True)
class EpochDirectory:
    """What one life of the trainer leaves behind."""

    path: Path

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def changes(self) -> Path:
        """What its trainer hears of between steps."""
        return self.path / "changes.json"

    @property
    def pulse(self) -> Path:
        """Touched while its trainer moves: trainer/host.py."""
        return self.path / "pulse"

    @property
    def trainer_log(self) -> Path:
        return self.path / "trainer.log"

    @property
    def trainer_times(self) -> Path:
        """When its lines were written: training/logs/times.py."""
        return self.path / "trainer.times"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "run.json"

    @property
    def rows(self) -> Path:
        return self.path / ROWS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def epochs(self) -> Path:
        """What each life left, by its number."""
        return self.path / "epochs"

    def epoch(self, number: int) -> EpochDirectory:
        return EpochDirectory(self.epochs / str(number))

    def epoch_numbers(self) -> list[int]:
        """Lives that left a directory, oldest first."""
        if not self.epochs.is_dir():
            return []
        return sorted(int(p.name) for p in self.epochs.iterdir() if p.name.isdigit())


def run_directory(run_id: int) -> RunDirectory:
    return RunDirectory(Path(settings.COHORT_DATA) / "runs" / str(run_id))
