"""Writing down what a run was launched with, for its trainer to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from dashboard.datasets.row_storage import write_rows, write_some_rows
from dashboard.runs.changes import first_config
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory, eval_rows, run_directory


def freeze(run: Run, *, on_progress: Callable[[], None] = lambda: None) -> RunDirectory:
    """Write all rows and run.json; run.json comes last and means complete.

    The rows are written once, run.json again where a resume has changed it.
    """
    directory = run_directory(run.id)
    has_changes = run.changes.exists()
    first = first_config(run).model_dump(mode="json") if has_changes else run.config
    config = {**first, "data": {**first["data"], "rows": directory.rows.name}}
    text = json.dumps(config, indent=2, allow_nan=False)
    if not directory.config.exists():
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        assert run.dataset_version, "launched"
        write_rows(run.dataset_version, directory.rows, on_progress=on_progress)
        for one in run.evaluation_sets.select_related("dataset_version__dataset"):
            path = directory.path / eval_rows(one.name)
            write_some_rows(
                one.dataset_version,
                path,
                max_rows=one.num_rows,
                on_progress=on_progress,
            )
    elif directory.config.read_text(encoding="utf-8") == text:
        return directory
    write_durably(directory.config, text)
    return directory


def write_durably(path: Path, text: str) -> None:
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
