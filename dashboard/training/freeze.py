"""Writing down what a run was launched with, for its trainer to read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dashboard.datasets.freeze import write_rows, write_some_rows
from dashboard.runs.directory import RunDirectory, eval_rows, run_directory
from dashboard.runs.models import Run


def freeze(run: Run) -> RunDirectory:
    """Write all rows and run.json, once; run.json comes last and means complete."""
    directory = run_directory(run.id)
    if directory.config.exists():
        return directory
    directory.checkpoints.mkdir(parents=True, exist_ok=True)
    write_rows(run.dataset_version, directory.rows)
    for one in run.evaluation_sets.select_related("dataset_version__dataset"):
        path = directory.path / eval_rows(one.name)
        write_some_rows(one.dataset_version, path, max_rows=one.num_rows)
    config = {**run.config, "data": {**run.config["data"], "rows": directory.rows.name}}
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
