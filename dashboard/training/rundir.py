"""The files of a run: what the trainer reads, and what it writes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from dashboard.datasets.freeze import write_rows
from dashboard.runs.models import Run


@dataclass(frozen=True, slots=True)
class EpochDirectory:
    """What one life of the trainer leaves behind."""

    path: Path

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def trainer_log(self) -> Path:
        return self.path / "trainer.log"

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
        return self.path / "rows.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def epoch(self, number: int) -> EpochDirectory:
        return EpochDirectory(self.path / "epochs" / str(number))

    def epoch_numbers(self) -> list[int]:
        """Lives that left a directory, oldest first."""
        folder = self.path / "epochs"
        if not folder.is_dir():
            return []
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def run_directory(run_id: int) -> RunDirectory:
    return RunDirectory(Path(settings.COHORT_DATA) / "runs" / str(run_id))


def freeze(run: Run) -> RunDirectory:
    """Write run.json and rows.jsonl, once; run.json comes last and means complete."""
    directory = run_directory(run.id)
    if directory.config.exists():
        return directory
    directory.checkpoints.mkdir(parents=True, exist_ok=True)
    write_rows(run.dataset_version, directory.rows)
    config = {**run.config, "data": {**run.config["data"], "rows": "rows.jsonl"}}
    _write_durably(directory.config, json.dumps(config, indent=2, allow_nan=False))
    return directory


def _write_durably(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
