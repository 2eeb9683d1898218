"""Datasets of a version's rows, or of rows that a task writes, made by jobs.

Rows never change, so the job finds what a view of a version shows; positions that were
found in a run come with the job.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction
from django.http import QueryDict

from dashboard.accounts.models import Team, User
from dashboard.datasets.generators import Task, generate_rows
from dashboard.datasets.imports import begin, begin_work
from dashboard.datasets.limits import check_disk_space_to_copy
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import RowFilterForm
from dashboard.datasets.row_order import compute_order
from dashboard.datasets.row_search import Search
from dashboard.datasets.row_storage import ROWS_AT_ONCE, select_rows
from dashboard.datasets.services import Report, create_dataset_version, store_version
from dashboard.project.errors import UserError

MAPPING = {"prompt": "question", "answer": "answer", "columns": ["entry", "task"]}
# Fields of a job that takes the place of a failed one.
_RETRIED = (
    *("kind", "team", "parent", "positions", "source", "filename", "num_to_read"),
    *("dataset", "name", "mapping"),
)


def source_of(
    parent: DatasetVersion, *, kind: str, query: str, how: str, **more: Any
) -> dict[str, Any]:
    """What the new version says of where its rows come from.

    `query` is the part of an address that shows what they were chosen by.
    """
    return {
        "kind": kind,
        "parent": str(parent),
        "parent_id": parent.pk,
        "parent_sha256": parent.content_sha256,
        "num_parent_rows": parent.num_rows,
        "query": query,
        "how": how,
        **more,
    }


def source_of_view(parent: DatasetVersion, form: RowFilterForm) -> dict[str, Any]:
    return source_of(parent, kind="view", query=form.query, how=form.description)


def key_of(
    form_key: UUID, *, name: str, dataset: Dataset | None, source: dict[str, Any]
) -> UUID:
    """The same for a form that is sent twice, another once something in it changed."""
    target = dataset.pk if dataset else ""
    return uuid5(form_key, f"{name}\0{target}\0{source['query']}")


def find_job(team: Team, key: UUID) -> ImportJob | None:
    return team.import_jobs.filter(key=key).defer("positions").first()


def start_selection(
    *,
    parent: DatasetVersion,
    source: dict[str, Any],
    name: str,
    dataset: Dataset | None,
    user: User | None,
    key: UUID,
    positions: Sequence[int] = (),
) -> tuple[ImportJob, bool]:
    """The job, and whether it is new: there is one for a key.

    `positions` of the rows, or none: those that the view in `source` shows.
    """
    return _start(
        key=key,
        team=parent.dataset.team,
        parent=parent,
        positions=array("I", positions).tobytes(),
        source=source,
        filename=f"rows of {parent}"[:200],
        num_to_read=len(positions) or parent.num_rows,
        dataset=dataset,
        name=name,
        mapping=parent.mapping,
        created_by=user,
    )


def retry_selection(job: ImportJob, user: User) -> tuple[ImportJob, bool]:
    """The job that takes the place of one that failed, and whether it is new."""
    assert job.key, "of every selection"
    fields = {name: getattr(job, name) for name in _RETRIED}
    return _start(key=uuid5(job.key, "again"), **fields | {"created_by": user})


def retry_generation(job: ImportJob, user: User) -> ImportJob:
    fields = {name: getattr(job, name) for name in _RETRIED}
    return begin(**fields | {"created_by": user})


def _start(*, key: UUID, **fields: Any) -> tuple[ImportJob, bool]:
    try:
        with transaction.atomic():
            return begin(key=key, **fields), True
    except IntegrityError:
        return ImportJob.objects.get(key=key), False


def make_selection(
    job: ImportJob,
    *,
    on_read: Report | None = None,
    on_stored: Report | None = None,
    on_made: Callable[[DatasetVersion], None] | None = None,
) -> DatasetVersion:
    """Store the job's rows. ValueError where there are none, or no place for them."""
    parent = job.parent
    if parent is None:
        raise UserError(
            "datasets.version_deleted",
            f"Cannot save {job.filename}: the version was deleted. Select rows of "
            "another version.",
        )
    chunks = (
        _stored_positions(job)
        if job.positions
        else _matching_positions(parent, job.source["query"])
    )
    selected = select_rows(parent, chunks, on_read=on_read)
    if not selected.num_rows:
        raise UserError(
            "datasets.no_matching_rows",
            f"None of the {parent.num_rows:,} rows of {parent} matches. Change the "
            "filters: a dataset needs at least one row.",
        )
    check_disk_space_to_copy(selected.num_bytes)
    if on_stored:
        on_stored(0, selected.num_rows)
    return store_version(
        selected,
        team=job.team,
        name=job.name,
        mapping=parent.mapping,
        source=job.source,
        user=job.created_by,
        dataset=job.dataset,
        on_stored=on_stored,
        on_made=on_made,
    )


def _stored_positions(job: ImportJob) -> Iterator[tuple[Sequence[int], int]]:
    positions = array("I", bytes(job.positions))
    for start in range(0, len(positions), ROWS_AT_ONCE):
        part = positions[start : start + ROWS_AT_ONCE].tolist()
        yield part, start + len(part)


def _matching_positions(
    parent: DatasetVersion, query: str
) -> Iterator[tuple[Sequence[int], int]]:
    form = RowFilterForm.read(parent, QueryDict(query))
    assert not form.errors, "it was checked when it was asked for"
    order = compute_order(parent, form.order_key, is_reversed=form.is_reversed)
    search = Search(version=parent, conditions=form.conditions, order=order)
    for first in range(0, parent.num_rows, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, parent.num_rows)
        yield [at for _, at in search.find(first, last, at_most=None)], last


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
