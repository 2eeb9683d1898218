"""Reads the files of an import row by row, with CSV of W&B and TensorBoard's event
files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from pydantic import ValidationError

from cohort.lines import STEPS, metric_name, number
from dashboard.datasets.parsing.detection import Detected, detect, read_records
from dashboard.datasets.parsing.parquet import read_parquet_files
from dashboard.datasets.parsing.records import (
    Parsed,
    Record,
    Refusal,
    broken_text,
    quote,
)
from dashboard.datasets.parsing.streams import Source
from dashboard.datasets.row import as_json
from dashboard.project.database import clean_json
from dashboard.project.subprocesses import ChildFailed
from dashboard.transfers.import_formats import (
    MAX_STEP,
    Item,
    Point,
    read_sample,
    tool_of,
)
from dashboard.transfers.models import ImportFile
from dashboard.transfers.tensorboard import is_event_file, read_scalars
from trainer.config import RunConfig
from trainer.events import (
    Evaluated,
    Event,
    GroupScored,
    RunResumed,
    RunStarted,
    StepFinished,
    UnknownEvent,
    parse_event,
)

TENSORBOARD = "TensorBoard"
WANDB = "W&B"
SEPARATOR = " - "
COHORT, LOG = "Cohort", "_cohort"  # the key that marks a line of its event log
_OWN = {"_step", "_timestamp", "_runtime", "_wandb", "time", "timestamp", "id", LOG}
# Columns of a table with rows of several runs, as of Trackio and MLflow.
_RUNS = ("run_name", "run_uuid", "run_id", "run")
_LONG = {"key", "value", "step"}  # MLflow: a row has one metric


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The columns of a W&B file.

    The export of a panel has its x axis first (Step, or a metric such as
    train/global_step) and for each run "<run> - <metric>", with "…__MIN" and "…__MAX"
    of averaged points. `run.history()` has _step, _timestamp and the metrics.
    """

    step: str
    time: str | None
    metrics: dict[str, tuple[str, str]]  # column: its run, its metric


def layout_of(columns: Iterable[str]) -> Layout | None:
    """Return the layout; None without a step column, or without another column."""
    names = list(columns)
    step = next((name for name in STEPS if name in names), None)
    if step is None:
        return None
    own = (*STEPS, *_OWN, *_RUNS)
    others = [n for n in names if n not in own and not n.endswith(("__MIN", "__MAX"))]
    metrics = {name: _parts(name) for name in others}
    if not metrics:
        return None
    time = "_timestamp" if "_timestamp" in names else None
    return Layout(step=step, time=time, metrics=metrics)


def _parts(column: str) -> tuple[str, str]:
    run, _, metric = column.rpartition(SEPARATOR)
    return run, metric_name(metric)


def read_point(
    layout: Layout, run: str | None, record: Record
) -> Point | Refusal | None:
    """Read a point; None if the row has no step, as in a history that logs something
    else.
    """
    step = _number(record.values.get(layout.step))
    if step is None:
        return None
    if not step.is_integer() or not 0 <= step <= MAX_STEP:
        return Refusal(
            line=record.line,
            column=layout.step,
            value=quote(record.values[layout.step]),
            problem="The step is not a non-negative integer.",
            remedy="Export the panel over steps.",
        )
    time = _number(record.values.get(layout.time)) if layout.time else None
    values = dict(_values(layout, run, record))
    return Point(step=int(step), time=time, values=values) if values else None


def _values(
    layout: Layout, run: str | None, record: Record
) -> Iterator[tuple[str, float]]:
    for column, (of_run, metric) in layout.metrics.items():
        if run is None or of_run == run:
            value = _number(record.values.get(column))
            if value is not None:
                yield metric, value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return number(value)


@dataclass(frozen=True, slots=True)
class Found:
    """An item of a file; `item` None: a row without data for a run."""

    file: ImportFile
    tool: str
    item: Item | Refusal | None
    columns: dict[str, str]  # of the row: what each of its columns became
    facts: dict[str, Any] = field(default_factory=dict)  # of the run, as its log has


def read_files(
    files: Iterable[ImportFile],
    *,
    wandb_run: str | None = None,
    on_read: Callable[[int], None] = lambda _: None,
) -> Iterator[Found]:
    """Parquet files last, together. `on_read` is called with the bytes read so far.

    An exception of `on_read` ends the reading.
    """
    parquet: list[tuple[ImportFile, Detected]] = []
    num_bytes = 0
    for file in files:
        with file.path.open("rb") as opened:
            is_events = is_event_file(opened)
        if is_events:
            for row, end in _events(file):
                on_read(num_bytes + end)
                yield row
        else:
            try:
                detected = detect(file.filename, file.path)
            except ValueError as error:
                refusal = Refusal(
                    problem=str(error),
                    remedy="Upload completions of TRL, verl or verifiers, TensorBoard "
                    "event files or CSV files of W&B.",
                    ends_file=True,
                )
                yield Found(file, "", refusal, {})
                continue
            if detected.format == "parquet":
                parquet.append((file, detected))
                continue
            source = Source(file.path, detected.format, detected.packing)
            for row in _rows(file, read_records(source), wandb_run):
                on_read(num_bytes + min(source.num_bytes_read, file.num_bytes))
                yield row
        num_bytes += file.num_bytes
        on_read(num_bytes)
    for file, records in _parquet_files(parquet):
        for row in _rows(file, records, wandb_run):
            on_read(num_bytes)
            yield row
        num_bytes += file.num_bytes


def _parquet_files(
    files: list[tuple[ImportFile, Detected]],
) -> Iterator[tuple[ImportFile, Iterator[Parsed]]]:
    """Read the files; if the child process fails at one, another continues after it."""
    while files:
        batches = read_parquet_files([(f.path, d.packing) for f, d in files])
        at = -1
        try:
            for at, of_file in groupby(batches, key=itemgetter(0)):
                yield files[at][0], chain.from_iterable(rows for _, _, rows in of_file)
        except ChildFailed as error:
            refusal = Refusal(
                problem=f"Reading failed: {error}.",
                remedy="Export the file again.",
                ends_file=True,
            )
            yield files[max(at, 0)][0], iter([refusal])
            files = files[max(at, 0) + 1 :]
        else:
            return


def _events(file: ImportFile) -> Iterator[tuple[Found, int]]:
    """Yield each event with where its record ends."""
    line = end = 0
    with file.path.open("rb") as opened:
        try:
            for line, scalars in enumerate(read_scalars(opened), start=1):
                names = {tag: metric_name(tag) for tag in scalars.values}
                item: Item | Refusal | None = None
                if broken := next(filter(broken_text, names), None):
                    item = Refusal(
                        line=line,
                        value=quote(broken),
                        problem=f"The tag contains {broken_text(broken)}.",
                        remedy="Log the value under another name.",
                    )
                elif scalars.values and not 0 <= scalars.step <= MAX_STEP:
                    item = Refusal(
                        line=line,
                        value=quote(scalars.step),
                        problem="The step is out of range.",
                        remedy=f"Use steps from 0 to {MAX_STEP:,}.",
                    )
                elif scalars.values:
                    values = {
                        names[t]: v
                        for t, v in scalars.values.items()
                        if math.isfinite(v)
                    }
                    item = Point(step=scalars.step, time=scalars.time, values=values)
                end = scalars.end
                yield Found(file, TENSORBOARD, item, names), end
        except ValueError as error:
            refusal = Refusal(
                line=line + 1,
                problem=str(error),
                remedy="Copy the complete file again. Cohort imports the records "
                "before this one.",
                ends_file=True,
            )
            yield Found(file, TENSORBOARD, refusal, {}), end


def _rows(
    file: ImportFile, parsed: Iterable[Parsed], wandb_run: str | None
) -> Iterator[Found]:
    tool, layout = "", None
    names: tuple[str, ...] = ()
    runs: dict[str, set[str]] = {name: set() for name in _RUNS}
    for record in chain.from_iterable(_unpack(item, file.filename) for item in parsed):
        if isinstance(record, Refusal):
            yield Found(file, tool, record, {})
            continue
        if isinstance(record, dict):
            yield Found(file, COHORT, None, {}, record)
            continue
        for column, run_names in runs.items():
            if isinstance(name := record.values.get(column), str):
                run_names.add(name)
        if several := next(
            (run_names for run_names in runs.values() if len(run_names) > 1), None
        ):
            yield Found(
                file,
                tool,
                Refusal(
                    line=record.line,
                    value=quote(sorted(several)),
                    problem="The file holds the metrics of several runs.",
                    remedy="Write a file for each run.",
                    ends_file=True,
                ),
                {},
            )
            return
        if tuple(record.values) != names:
            names = tuple(record.values)
            tool, layout = tool_of(names) or "", None
            if not tool and (layout := layout_of(names)):
                tool = COHORT if LOG in names else WANDB
        if layout:
            point = read_point(layout, wandb_run, record)
            columns = {c: m for c, (_, m) in layout.metrics.items()}
            yield Found(file, tool, point, columns)
        elif tool:
            sample = read_sample(tool, record)
            scores = () if isinstance(sample, Refusal) else sample.scores
            columns = {name: f"reward/{name}/mean" for name in scores}
            yield Found(file, tool, sample, columns)
        else:
            yield Found(
                file,
                "",
                Refusal(
                    line=record.line,
                    value=quote(sorted(record.values)),
                    problem="The columns match neither completions of TRL (prompt, "
                    "completion), verl (input, output, score) or verifiers (nodes, "
                    "rewards, agent) nor metrics of W&B (Step or _step).",
                    remedy="Export the file again, or leave it out.",
                    ends_file=True,
                ),
                {},
            )
            return


def _read_event(record: Record) -> Iterator[Parsed | dict[str, Any]]:
    """Yield what a line of Cohort's own events.jsonl has: metrics, completions or
    the run's settings, device, engine and versions.
    """
    try:
        event = parse_event(as_json(record.values))
    except UnknownEvent:  # of a newer version
        return
    except ValidationError:
        yield record  # whose columns are refused
        return
    if isinstance(event, RunStarted | RunResumed):
        try:
            config = RunConfig.model_validate(event.config).model_dump(mode="json")
        except ValidationError:  # of another version, or none
            config = {}
        place = [event.device, event.engine or "", event.versions]
        yield clean_json({"config": config, "place": place})
    for row in _rows_of_event(event):
        yield replace(record, values=row)


def _rows_of_event(event: Event) -> Iterator[dict[str, Any]]:
    match event:
        case StepFinished() | Evaluated():
            yield {
                **event.metrics,
                "step": event.step,
                "_timestamp": event.time,
                LOG: True,
            }
        case GroupScored():
            for position, completion in enumerate(event.completions):
                yield {
                    **completion.model_dump(),
                    "completion": completion.text,
                    "step": event.step,
                    "prompt": event.prompt,
                    "prompt_index": event.prompt_index,
                    "position": position,
                    "answer": event.answer,
                }


def _unpack(record: Parsed, filename: str) -> Iterator[Parsed | dict[str, Any]]:
    """Rows of a record: verl's logger writes metrics below data, MLflow one metric a
    row, ms-swift lists of a step's completions, verifiers the traces of an episode,
    Cohort's trainer events.
    """
    if isinstance(record, Refusal):
        yield record
        return
    values = record.values
    if {"type", "attempt", "line", "step", "time"} <= values.keys():
        yield from _read_event(record)
        return
    if isinstance(values.get("traces"), list):
        # prime-rl tells the step by the folder, and for an episode when it was begun.
        folder = re.search(r"\bstep_(\d{1,10})/", filename)
        known = {"run": values.get("run")} | (
            {"step": int(folder[1])} if folder else {}
        )
        yield from (
            replace(record, values=trace | known, row=i + 1)
            for i, trace in enumerate(values["traces"])
            if isinstance(trace, dict)
            and isinstance(agent := trace.get("agent"), dict)
            and agent.get("trainable", True)
        )
        return
    data = values.get("data")
    if values.keys() == {"step", "data"} and isinstance(data, dict):
        values = {**data, "step": values["step"]}
    elif values.keys() >= _LONG and isinstance(values["key"], str):
        named = {values["key"]: values["value"]}
        values = {n: v for n, v in values.items() if n not in ("key", "value")} | named
    completions = values.get("completion")
    if not isinstance(completions, list) or not isinstance(values.get("step"), list):
        yield replace(record, values=values)
        return
    for i in range(len(completions)):
        row = {
            name: value[i] if isinstance(value, list) and i < len(value) else value
            for name, value in values.items()
        }
        yield replace(record, values=row, row=i + 1)
