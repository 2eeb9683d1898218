"""A run in the folders of MLflow's file store.

    mlruns/<experiment>/meta.yaml
    mlruns/<experiment>/<run>/meta.yaml, metrics/<name>, params/<name>, tags/<name>

`mlflow migrate-filestore` (MLflow 3.10 and later) moves it into a database;
`mlflow server --backend-store-uri mlruns` serves it as it is.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from dashboard.exchange.exports.metrics import metric_names
from dashboard.exchange.exports.span import Span
from dashboard.runs.models import Evaluation, Run, RunState, Step

AT_ONCE = 5_000  # values in memory together
MAX_VALUE_CHARS = 6_000  # of a parameter, by mlflow.utils.validation
MAX_NAME_CHARS = 250
FIRST_EXPERIMENT = 10**17  # beyond what a store counts up to by itself
# mlflow.entities.RunStatus
_STATUS = {
    RunState.QUEUED: 2,
    RunState.FINISHED: 3,
    RunState.FAILED: 4,
    RunState.STOPPED: 5,
}
_RUNNING = 1

Told = tuple[int, datetime, float | None]  # a metric's value: step, time, number
File = tuple[str, Iterable[bytes]]


def mlflow_files(run: Run, span: Span) -> Iterator[File]:
    experiment = str(FIRST_EXPERIMENT + run.team_id)
    # The same every time, so that a later export takes the place of an earlier one.
    run_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{run.pk} {run.created_at}").hex
    root = f"mlruns/{experiment}"
    folder = f"{root}/{run_id}"
    yield f"{root}/meta.yaml", [_yaml(_experiment(run, experiment, root))]
    yield f"{folder}/meta.yaml", [_yaml(_run(run, experiment, run_id, folder))]
    for name, text in _tags(run).items():
        yield f"{folder}/tags/{name}", [text.encode()]
    for name, text in _params(run).items():
        yield f"{folder}/params/{name}", [text.encode()]
    for metric, name in _named(metric_names(run)).items():
        lines = _values(run, span, metric)
        if first := next(lines, None):  # an empty file is taken for a damaged one
            yield f"{folder}/metrics/{name}", chain([first], lines)


def _experiment(run: Run, experiment: str, root: str) -> dict[str, Any]:
    made = _milliseconds(run.team.created_at)
    return {
        "artifact_location": root,
        "creation_time": made,
        "experiment_id": experiment,
        "last_update_time": made,
        "lifecycle_stage": "active",
        "name": f"Cohort {run.team}",
    }


def _run(run: Run, experiment: str, run_id: str, folder: str) -> dict[str, Any]:
    began = run.started_at or run.created_at
    return {
        "artifact_uri": f"{folder}/artifacts",
        "end_time": run.finished_at and _milliseconds(run.finished_at),
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": "active",
        "run_id": run_id,
        "run_name": run.name,
        "source_name": "",
        "source_type": 4,
        "source_version": "",
        "start_time": _milliseconds(began),
        "status": _STATUS.get(RunState(run.state), _RUNNING),
        "tags": [],
        "user_id": run.owner.username if run.owner else "",
    }


def _tags(run: Run) -> dict[str, str]:
    tags = {
        "mlflow.runName": run.name,
        "mlflow.user": run.owner.username if run.owner else "",
        "mlflow.source.name": "Cohort",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": run.notes,
        "cohort.run": str(run.pk),
        "cohort.model": run.model_label,
    }
    return {name: text for name, text in tags.items() if text}


def _params(run: Run) -> dict[str, str]:
    """The settings, flat; lists as JSON."""
    flat = dict(_flatten(run.config))
    named = _named(flat)
    return {named[name]: text[:MAX_VALUE_CHARS] for name, text in flat.items()}


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{name}", text


def _named(names: Iterable[str]) -> dict[str, str]:
    """As MLflow takes them: "pass@4" becomes "pass_at_4"; each is a file of its own."""
    plain = {name: _plain(name) for name in names}
    # Where "kl" and "kl/mean" are both there, the one is a folder.
    taken = {parent for each in plain.values() for parent in _parents(each)}
    named: dict[str, str] = {}
    for name, wanted in plain.items():
        free, number = wanted, 1
        while free in taken:
            number += 1
            free = f"{wanted}_{number}"
        taken.add(free)
        named[name] = free
    return named


def _plain(name: str) -> str:
    allowed = re.sub(r"[^\w.\- :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in allowed.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_NAME_CHARS].rstrip("/") or "metric"


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _values(run: Run, span: Span, metric: str) -> Iterator[bytes]:
    """A line each: milliseconds, value, step."""
    for step, time, value in _read(run, span, metric):
        if value is not None:
            yield f"{_milliseconds(time)} {value!r} {step}\n".encode()


def _read(run: Run, span: Span, metric: str) -> Iterator[Told]:
    place = run.metric_names.index(metric) if metric in run.metric_names else None
    first = span.first
    while True:
        found = (
            _evaluated(run, metric, first, span.last)
            if place is None
            else _stepped(run, place, first, span.last)
        )
        yield from found
        if len(found) < AT_ONCE:
            return
        first = found[-1][0] + 1


def _stepped(run: Run, place: int, first: int, last: int) -> list[Told]:
    rows = Step.objects.filter(run=run, superseded_by=None, step__range=(first, last))
    rows = rows.order_by("step")
    return list(rows.values_list("step", "time", f"values__{place}")[:AT_ONCE])


def _evaluated(run: Run, metric: str, first: int, last: int) -> list[Told]:
    rows = Evaluation.objects.filter(run=run, superseded_by=None)
    rows = rows.filter(step__range=(first, last), metrics__has_key=metric)
    found = rows.order_by("step").values_list("step", "time", "metrics")[:AT_ONCE]
    return [(step, time, metrics[metric]) for step, time, metrics in found]


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000)


def _yaml(tree: dict[str, Any]) -> bytes:
    """JSON's numbers, texts and null are YAML's."""
    return "".join(f"{k}: {json.dumps(v)}\n" for k, v in tree.items()).encode()
