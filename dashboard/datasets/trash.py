"""Datasets in the trash: restored, deleted, or purged after a month.

A dataset that a run used is never deleted, as the run refers to it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.datasets.imports import remove_files, request_stop
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.project.errors import UserError

RETENTION = timedelta(days=30)


@transaction.atomic
def trash_dataset(dataset: Dataset, user: User | None) -> bool:
    """False if it already is in the trash."""
    moved = Dataset.objects.filter(pk=dataset.pk, trashed_at__isnull=True).update(
        trashed_at=timezone.now(), trashed_by=user
    )
    if moved:
        record(dataset.team, user, "dataset.trashed", dataset, dataset=dataset.name)
    return bool(moved)


def lock_untrashed(version: DatasetVersion) -> None:
    """Keep its dataset out of the trash until the transaction ends.

    UserError if it is in the trash or deleted, as after a form was opened.
    """
    locked = Dataset.objects.select_for_update(no_key=True).filter(
        pk=version.dataset_id, trashed_at__isnull=True
    )
    if locked.first() is None:
        raise UserError(
            "datasets.in_trash",
            f"{version.dataset} was moved to the trash. Restore it, or choose another "
            "dataset.",
        )


def restore_dataset(dataset: Dataset, *, name: str, user: User | None) -> None:
    """UserError if another dataset has the name."""
    try:
        with transaction.atomic():
            restored = Dataset.objects.filter(
                pk=dataset.pk, trashed_at__isnull=False
            ).update(trashed_at=None, trashed_by=None, name=name)
            if restored:
                record(dataset.team, user, "dataset.restored", dataset, dataset=name)
    except IntegrityError as error:
        raise UserError(
            "datasets.name_taken",
            f'{dataset.team} already has a dataset named "{name}". Choose another '
            "name.",
        ) from error


def delete_dataset(dataset: Dataset, user: User | None) -> None:
    """Delete it if it is in the trash. UserError if a run used it."""
    try:
        with transaction.atomic():
            locked = Dataset.objects.select_for_update(of=("self",)).filter(
                pk=dataset.pk, trashed_at__isnull=False
            )
            for trashed in locked.select_related("team"):
                uploads = list(trashed.uploads.all())
                for job in ImportJob.objects.filter(upload__in=uploads):
                    request_stop(job)
                record(
                    trashed.team, user, "dataset.deleted", trashed, dataset=trashed.name
                )
                trashed.delete()
                for upload in uploads:  # unfinished ones
                    transaction.on_commit(partial(remove_files, upload))
    except ProtectedError as error:
        # By a probe or by a run that is not being deleted.
        # Relations of higher floors, named by string only.
        users = (
            {"runs__isnull": False, "runs__deleted_at": None},
            {
                "evaluation_sets__isnull": False,
                "evaluation_sets__run__deleted_at": None,
            },
            {"probes__isnull": False},
        )
        if not any(dataset.versions.filter(**user).exists() for user in users):
            raise UserError(
                "datasets.run_being_deleted",
                f"Cohort is still deleting a run that used {dataset}. Delete the "
                "dataset again in a few minutes.",
            ) from error
        raise UserError(
            "datasets.in_use",
            f"A run or a test used {dataset}, so it cannot be deleted. Leave it in "
            "the trash.",
        ) from error


def purge_trash() -> None:
    """Delete datasets a month in the trash that no run or probe used."""
    old = Dataset.objects.filter(trashed_at__lt=timezone.now() - RETENTION)
    # Relations of higher floors, named by string only.
    for user in ("runs", "evaluation_sets", "probes"):
        old = old.exclude(**{f"versions__{user}__isnull": False})
    for dataset in old:
        with suppress(ValueError):  # used in the meantime
            delete_dataset(dataset, None)
