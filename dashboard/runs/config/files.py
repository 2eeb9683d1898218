"""A run's settings as files for `python -m trainer run`."""

from __future__ import annotations

from dashboard.runs.config.snapshot import write_json, write_toml
from dashboard.runs.directory import ROWS, eval_rows
from dashboard.runs.models import Run
from dashboard.runs.queries import list_evaluation_sets
from trainer.config import RunConfig


def _write_toml(run: Run, config: RunConfig) -> str:
    """Before the settings, what is in the files that they name."""
    assert run.dataset_version, "launched"
    files = [(ROWS, run.dataset_version, run.dataset_version.num_rows)]
    files += [
        (eval_rows(one.name), one.dataset_version, one.num_rows)
        for one in list_evaluation_sets(run)
    ]
    lines = [
        f"# {file}: {' '.join(str(version).split())}, {num_rows:,} of "
        f"{version.num_rows:,} rows, SHA-256 of all {version.content_sha256}\n"
        for file, version, num_rows in files
    ]
    return "".join(lines) + "\n" + write_toml(config)


def _write_json(_run: Run, config: RunConfig) -> str:
    return write_json(config)


WRITERS = {"toml": _write_toml, "json": _write_json}
