"""Permanent deletion of runs in the trash, with their files.

Tables with few rows of the run are emptied at once. The rest is deleted in batches in
the background; the run is hidden from then on.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError, connection, models, transaction
from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.jobs import shutdown
from dashboard.jobs.kinds import register_purge
from dashboard.jobs.schedule import DAY_SECONDS, wake_workers
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory, run_directory

logger = logging.getLogger(__name__)
KEPT = timedelta(days=30)  # as datasets are
FEW_ROWS = 2_000  # of a table, deleted at once
# Each batch is one transaction of about a second.
ROWS_AT_A_TIME = 50_000
PARENTS_AT_A_TIME = 10_000  # with rows that reference them
NUM_DELETED = "num_rows_deleted"  # in a hidden run's summary

SECONDS = 8.0  # of the ten between two messages


class Busy(Exception):
    """Another worker deletes the rows of this run."""


def delete_run(run: Run, user: User | None) -> None:
    """Delete it with all its data. UserError if it was restored."""
    with transaction.atomic():
        locked = (
            Run.objects.select_for_update(of=("self",))
            .select_related("team")
            .filter(pk=run.pk, trashed_at__isnull=False)
            .first()
        )
        if locked is None:
            raise UserError(
                "runs.not_in_trash",
                f"{run.name} is not in the trash. Move it there before deleting it.",
            )
        record(locked.team, user, "run.deleted", locked, name=locked.name)
        few = [rows for rows in _own_rows(locked) if not rows[FEW_ROWS:].exists()]
        for rows in few:
            rows.delete()
        if len(few) == len(list(_own_rows(locked))):
            locked.delete()
        else:
            _hide(locked)
            # Best effort: the clock polls every 10 s.
            transaction.on_commit(
                partial(
                    wake_workers,
                    "runs.delete_rows",
                    queue="default",
                    expires=DAY_SECONDS,
                )
            )
        transaction.on_commit(partial(_remove_files, run.pk))


def _own_rows(run: Run) -> Iterator[QuerySet[Any]]:
    for relation in Run._meta.related_objects:
        if relation.on_delete is models.CASCADE:
            yield relation.related_model._base_manager.filter(
                **{relation.field.name: run}
            ).order_by()


def _hide(run: Run) -> None:
    """Remove all references to it and free its key, as if it were deleted."""
    for relation in Run._meta.related_objects:
        if relation.on_delete is models.SET_NULL:
            name = relation.field.name
            relation.related_model._base_manager.filter(**{name: run}).update(
                **{name: None}
            )
    run.deleted_at = timezone.now()
    run.source.pop("key", None)
    # Not in its source: of a run that was launched here it stays empty.
    run.summary = {NUM_DELETED: 0}
    run.save(update_fields=["deleted_at", "source", "summary"])


def delete_hidden_rows(*, until: float) -> None:
    """Delete all hidden runs, the oldest first, until `time.monotonic()` is `until`."""
    for run in (
        Run.everywhere.exclude(deleted_at=None).order_by("deleted_at").only("pk")
    ):
        with suppress(Busy):
            for rows in [*_own_rows(run), Run.everywhere.filter(pk=run.pk)]:
                while _delete_some(run, rows):
                    if shutdown.is_announced() or time.monotonic() >= until:
                        return
            logger.info("run %s: its last row is deleted", run.pk)


def _delete_some(run: Run, rows: QuerySet[Any]) -> bool:
    """Tell whether there were any. Only rows of this run are locked, and it itself."""
    model = rows.model
    at_a_time = PARENTS_AT_A_TIME if _pointing_at(model) else ROWS_AT_A_TIME
    with transaction.atomic():
        free = Run.everywhere.select_for_update(skip_locked=True).filter(pk=run.pk)
        if not free.exists() and Run.everywhere.filter(pk=run.pk).exists():
            raise Busy
        pks = list(rows.values_list("pk", flat=True)[:at_a_time])
        if not pks:
            return False
        if _goes_by_sql(model):
            _delete_by_sql(model, model._meta.pk.column, pks)
        else:
            model._base_manager.filter(pk__in=pks).delete()
        # For the operators' page; cascaded rows are not counted.
        row = Run.everywhere.filter(pk=run.pk).only("summary").first()
        if row is not None:
            row.summary[NUM_DELETED] = row.summary.get(NUM_DELETED, 0) + len(pks)
            row.save(update_fields=["summary"])
        return True


def _pointing_at(model: type[models.Model]) -> list[models.ManyToOneRel]:
    return [
        field
        for field in model._meta.get_fields(include_hidden=True)
        if isinstance(field, models.ManyToOneRel)
    ]


def _goes_by_sql(model: type[models.Model]) -> bool:
    """Tell whether all rows that reference it cascade, recursively."""
    return all(
        relation.on_delete is models.CASCADE and _goes_by_sql(relation.related_model)
        for relation in _pointing_at(model)
    )


def _delete_by_sql(model: type[models.Model], column: str, values: list[Any]) -> None:
    """Delete in a third of the time of Django's own: objects are not made of
    the rows.
    """
    table, key = map(connection.ops.quote_name, (model._meta.db_table, column))
    pk = connection.ops.quote_name(str(model._meta.pk.column))
    with connection.cursor() as cursor:
        pointing = _pointing_at(model)
        if pointing and column != model._meta.pk.column:
            cursor.execute(
                f"SELECT {pk} FROM {table} WHERE {key} = ANY(%s)",  # nosec B608 # noqa: S608 - names of our own
                [values],
            )
            pks = [pk_ for (pk_,) in cursor]
        else:
            pks = values
        for relation in pointing if pks else ():
            _delete_by_sql(relation.related_model, relation.field.column, pks)
        cursor.execute(
            f"DELETE FROM {table} WHERE {key} = ANY(%s)",  # nosec B608 # noqa: S608 - as above
            [values],
        )


def _remove_files(run_id: int) -> None:
    directory = run_directory(run_id)
    path = directory.path
    try:
        _note_stored_folder(run_id, directory)
    except (OSError, ValueError) as error:
        logger.warning("run-%s-* stays in COHORT_RAY_STORAGE: %s", run_id, error)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        logger.warning("run %s: files could not be deleted: %s", run_id, path)


def stored_folders_to_delete() -> Path:
    """Return the folder with a file for each folder of a deleted run in
    COHORT_RAY_STORAGE, named like it.

    This process has neither the storage's address nor its credentials: a training
    worker deletes the folder, then the file (training/clusters.py).
    """
    return Path(settings.COHORT_DATA) / "ray-storage-to-delete"


def _note_stored_folder(run_id: int, directory: RunDirectory) -> None:
    with suppress(FileNotFoundError):  # it never ran on a cluster with a storage
        name = directory.ray_storage.read_text("utf-8")
        # Reward code of the run could write there: no other run's folder is deleted.
        if not re.fullmatch(rf"run-{run_id}-[0-9a-f]{{8}}", name):
            raise ValueError(f"{name[:80]!r} is not the name of a folder of this run")
        folder = stored_folders_to_delete()
        folder.mkdir(exist_ok=True)
        directory.ray_storage.replace(folder / name)


def purge_trash() -> None:
    """Delete runs that have been in the trash for a month."""
    for run in Run.objects.filter(trashed_at__lt=timezone.now() - KEPT).only(
        "id", "name"
    ):
        purge_run(run)


def purge_run(run: Run) -> None:
    """Delete it unless it was restored. A database error does not stop the others."""
    try:
        with suppress(ValueError):  # restored in the meantime
            delete_run(run, None)
    except DatabaseError:
        logger.exception("run %s could not be deleted from the trash", run.pk)


register_purge(purge_trash)


@shared_task(name="runs.delete_rows", ignore_result=True)
def delete_rows() -> None:
    """Delete rows of hidden runs, for a few seconds."""
    delete_hidden_rows(until=time.monotonic() + SECONDS)
