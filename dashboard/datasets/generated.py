"""Datasets of prompts that a task writes: asked for as jobs, made by a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

from dashboard.accounts.models import Team, User
from dashboard.datasets.generators.reasoning_gym import Task, generate_rows
from dashboard.datasets.imports.jobs import begin, begin_work
from dashboard.datasets.models import DatasetVersion, ImportJob
from dashboard.datasets.row import Row
from dashboard.datasets.services import Report, create_dataset_version

MAPPING = {"prompt": "question", "answer": "answer", "columns": ["entry", "task"]}


def start_generation(
    *,
    team: Team,
    user: User,
    task: Task,
    name: str,
    size: int,
    seed: int,
    typed: Mapping[str, str],
) -> ImportJob:
    """`typed` are options as texts; ValueError where one of them is wrong."""
    changed = {
        option.name: value
        for option in task.options
        if (value := option.parse(typed.get(option.name, option.text)))
        != option.default
    }
    row = begin(
        kind=ImportJob.Kind.GENERATE,
        team=team,
        filename=task.name,
        num_to_read=size,
        name=name,
        mapping=MAPPING,
        source={
            "kind": "generator",
            "task": task.name,
            "size": size,
            "seed": seed,
            "options": changed,
        },
        created_by=user,
    )
    begin_work(row, at_once=False)
    return row


def start_generation_again(row: ImportJob, user: User) -> ImportJob:
    """A job that takes the place of one that came to nothing."""
    return begin(
        kind=row.kind,
        team=row.team,
        filename=row.filename,
        num_to_read=row.num_to_read,
        name=row.name,
        mapping=row.mapping,
        source=row.source,
        created_by=user,
    )


def query_of(source: Mapping[str, Any], name: str) -> str:
    """The part of an address that fills the task's form in again."""
    options = {f"option-{key}": value for key, value in source["options"].items()}
    chosen = {key: source[key] for key in ("task", "size", "seed")}
    return urlencode({**chosen, "name": name, **options})


def make_generated(
    row: ImportJob,
    *,
    on_read: Report,
    on_stored: Report,
    on_made: Callable[[DatasetVersion], None],
) -> DatasetVersion:
    """ValueError when the task refuses its options or takes too long.

    `on_read` is called with the rows written so far and all of them; for the others
    see `create_dataset_version`.
    """
    return create_dataset_version(
        team=row.team,
        name=row.name,
        rows=_rows(row, on_read),
        mapping=row.mapping,
        source=row.source,
        user=row.created_by,
        on_stored=on_stored,
        on_made=on_made,
    )


def _rows(row: ImportJob, on_read: Report) -> Iterator[Row]:
    task, size = row.source["task"], row.source["size"]
    rows = generate_rows(
        task, size=size, seed=row.source["seed"], options=row.source["options"]
    )
    with closing(rows):
        for number, each in enumerate(rows, 1):
            on_read(number, size)
            yield each
