"""`cohort import` and `cohort export`: runs of Weights & Biases and Trackio.

The other tool's own library reads and writes, with the login of this machine.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from cohort.api import Client
from cohort.api.datasets import UNFINISHED, send_parts
from cohort.api.frames import import_library
from cohort.http import Refused, Unreachable, query_of
from cohort.lines import STEPS, number, plain
from cohort.output import Bar, print_error, show

POLL_SECONDS = 1.0
MODELS = ("model_name_or_path", "model_name", "_name_or_path")  # in a run's config
TABLES = ("table-file", "trackio.table")
MAX_NAME = 80  # characters, the server's limit
# The figures of this machine are not the run's.
UNWATCHED: dict[str, dict[str, Any]] = {
    "wandb": {"settings": {"x_disable_stats": True, "console": "off"}},
    "trackio": {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A run of another tool: what it logged, in order, with tables to read."""

    name: str
    config: Mapping[str, Any]
    rows: Iterable[Mapping[str, Any]]
    read_table: Callable[[Mapping[str, Any]], list[dict[str, Any]]]


def read_wandb(path: str, folder: Path) -> Iterator[Source]:
    api = import_library("wandb").Api()
    for run in [api.run(path)] if path.count("/") == 2 else api.runs(path):

        def read_table(
            value: Mapping[str, Any], run: Any = run
        ) -> list[dict[str, Any]]:
            path = PurePosixPath(value["path"])  # its library joins it to the folder
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"A table has the path {str(path)[:200]!r}.")
            with run.file(str(path)).download(str(folder), replace=True) as file:
                table = json.load(file)
            return [
                dict(zip(table["columns"], row, strict=True)) for row in table["data"]
            ]

        yield Source(
            name=run.name,
            config=run.config,
            rows=run.scan_history(),  # history() samples
            read_table=read_table,
        )


def read_trackio(project: str, _folder: Path) -> Iterator[Source]:
    trackio = import_library("trackio")
    for run in trackio.Api().runs(project):
        rows = trackio.SQLiteStorage.get_logs(project, run=run.name, run_id=run.id)
        yield Source(
            name=run.name,
            config=run.config or {},
            rows=[
                row
                | {"_timestamp": datetime.fromisoformat(row["timestamp"]).timestamp()}
                for row in rows
            ],
            read_table=lambda value: value["_value"],
        )


READERS = {"wandb": read_wandb, "trackio": read_trackio}


@contextmanager
def _named_errors(tool: str) -> Iterator[None]:
    """Turn errors of a tool's library, which has kinds of its own, into ValueError."""
    try:
        yield
    except (Refused, Unreachable, ImportError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise ValueError(f"{tool}: {error}") from None


def import_runs(args: Namespace) -> None:
    client = Client()
    with _named_errors(args.tool), TemporaryDirectory(prefix="cohort-") as folder:
        for source in READERS[args.tool](args.source, Path(folder)):
            file = Path(folder) / "history.jsonl"
            with file.open("w", encoding="utf-8") as lines:
                for record in read_records(source):
                    lines.write(f"{json.dumps(plain(record))}\n")
            if file.stat().st_size == 0:
                print_error(f"Skipped {source.name}: it has no metrics with steps.")
                continue
            run = _make_run(client, file, source, leaves_out=args.leave_out)
            address = f"{client.address}/runs/{run}/"
            data = {"run": run, "name": source.name, "url": address}
            show(args, data, f"Imported {source.name} as run {run}: {address}")


def read_records(source: Source) -> Iterator[dict[str, Any]]:
    """Yield metrics with their steps, and the rows of tables that are completions.

    Rows without the trainer's own step are left out where others have it.
    """
    rows = list(source.rows)
    step = next((name for name in STEPS if any(name in row for row in rows)), None)
    for row in rows:
        for value in row.values():
            if isinstance(value, Mapping) and value.get("_type") in TABLES:
                yield from (
                    record
                    for record in source.read_table(value)
                    if record.keys() >= {"prompt", "completion", "step"}
                )
        metrics = {
            name: number(value)
            for name, value in row.items()
            if type(value) in (int, float) and number(value) is not None
        }
        if step in metrics and metrics.keys() - {*STEPS, "_timestamp", "_runtime"}:
            yield metrics


def _make_run(client: Client, file: Path, source: Source, *, leaves_out: bool) -> int:
    """Upload a file, and make a run of it; returns its number."""
    path = f"/run-imports/{client.post('/run-imports')['id']}"
    size = file.stat().st_size
    address = f"{path}/files{query_of(filename=file.name, num_bytes=size)}&offset="

    def read_upload() -> Any:
        unfinished = client.get(path)["unfinished"]
        return unfinished[0] if unfinished else {"num_received": size, "is_whole": True}

    begun = {"num_received": 0, "is_whole": False}
    with Bar(f"Uploading {source.name}") as bar:
        send_parts(client, file, address, begun, read_upload, bar)
    found = _wait(client, path, client.post(f"{path}/read"))["findings"]
    model = next(
        (str(source.config[key]) for key in MODELS if key in source.config), ""
    )
    body = {
        "name": source.name[:MAX_NAME],
        "model": model[:200],
        "leave_out": leaves_out and found["num_refused"] > 0,
    }
    return int(_wait(client, path, client.post(f"{path}/make", body))["run_id"])


def _wait(client: Client, path: str, job: Any) -> Any:
    while job["state"] in UNFINISHED:
        time.sleep(POLL_SECONDS)
        job = client.get(path)
    if job["state"] != "done":
        raise ValueError(f"The import failed. {job['error']}")
    return job


def export_run(args: Namespace) -> None:
    """Log a run's metrics under their steps."""
    run = Client().runs.get(args.run)
    library = import_library(args.to)
    points = run.metrics()
    with _named_errors(args.to), redirect_stdout(sys.stderr):
        logged = library.init(
            project=args.project, name=run.name, config=run.config, **UNWATCHED[args.to]
        )
        for point in points:
            logged.log(point.values, step=point.step)
        library.finish()
    data = {"run": run.id, "to": args.to, "project": args.project, "steps": len(points)}
    show(args, data, f"Logged {len(points):,} steps to {args.project} of {args.to}.")
