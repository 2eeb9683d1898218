"""Is there room on the disk: for a file that is sent, for rows that are imported."""

from __future__ import annotations

import shutil

from django.conf import settings

from dashboard.accounts.templatetags.numbers import num_bytes as size
from dashboard.datasets.limits import RESERVED_BYTES


def check_room(num_bytes: int, *, purpose: str) -> None:
    """ValueError, in words, where so much more would fill the disk.

    What is kept free is for the database, which would stop on a full disk.
    """
    free = shutil.disk_usage(_existing_folder()).free
    if free - num_bytes < RESERVED_BYTES:
        raise ValueError(
            f"The disk that holds {settings.COHORT_DATA} has {size(free)} left; "
            f"{purpose} needs {size(num_bytes)}, and {size(RESERVED_BYTES)} are kept "
            "free for the database. Free some space there, then try again."
        )


def check_room_to_import(num_bytes: int) -> None:
    """Rows wait on disk until all are known good; our own database lies there, too."""
    copies = 2 if settings.DATABASE_IS_EMBEDDED else 1
    check_room(copies * num_bytes, purpose="the import")


def check_room_to_copy(num_bytes: int) -> None:
    """The rows are in the database already, and will be there twice."""
    if settings.DATABASE_IS_EMBEDDED:
        check_room(num_bytes, purpose="the copy")


def _existing_folder() -> str:
    folder = settings.COHORT_DATA
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
