"""Runs that were put away: deleted for good with their files, at once or in time."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from datetime import timedelta
from functools import partial

from django.db import models, transaction
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.runs.directory import run_directory
from dashboard.runs.models import Run

logger = logging.getLogger(__name__)
KEPT = timedelta(days=30)  # as datasets are
ROWS_AT_A_TIME = 2_000


def delete_run(run: Run, user: User | None) -> None:
    """Delete it with all that was recorded of it. ValueError where it was restored.

    Its rows go some at a time, as a run may have millions, and all in one transaction:
    nobody restores half a run.
    """
    with transaction.atomic():
        held = Run.objects.select_for_update(of=("self",)).select_related("team")
        found = held.filter(pk=run.pk, trashed_at__isnull=False).first()
        if found is None:
            raise ValueError(f"{run.name} is not in the trash, so it was not deleted.")
        _delete_rows(found)
        record(found.team, user, "run.deleted", found, name=found.name)
        found.delete()
        transaction.on_commit(partial(_remove_files, run.pk))


def _delete_rows(run: Run) -> None:
    for relation in Run._meta.related_objects:
        if relation.on_delete is not models.CASCADE:
            continue
        own = relation.related_model._base_manager.filter(**{relation.field.name: run})
        while pks := list(own.values_list("pk", flat=True)[:ROWS_AT_A_TIME]):
            relation.related_model._base_manager.filter(pk__in=pks).delete()


def _remove_files(run_id: int) -> None:
    path = run_directory(run_id).path
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        logger.warning("run %s: files could not be deleted: %s", run_id, path)


def forget_old_trash() -> None:
    """What has been in the trash for a month."""
    old = Run.objects.filter(trashed_at__lt=timezone.now() - KEPT)
    for run in old.only("id", "name"):
        with suppress(ValueError):  # restored in the meantime
            delete_run(run, None)
