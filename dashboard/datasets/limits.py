"""Limits of files and rows, and the checks of disk space.

Each refusal names its limit.
"""

from __future__ import annotations

import shutil

from django.conf import settings

from dashboard.project.errors import UserError

# A million rows of 4 KiB each; imported in some three minutes.
MAX_UPLOAD_BYTES = 4 * 2**30
MAX_PASTED_CHARS = 2 * 2**20
# A lost connection loses at most one part.
PART_BYTES = 8 * 2**20
# Of a team's files that are not imported, at their full size.
MAX_TEAM_BYTES = 4 * MAX_UPLOAD_BYTES
MAX_TEAM_UPLOADS = 100
MAX_LINE_CHARS = 8 * 2**20  # also the longest text in a Parquet file
MAX_ROW_BYTES = 64 * 2**20  # of a Parquet file, unpacked
MAX_ROWS = 1_000_000
MAX_COLUMNS = 1_000
MAX_NAME_CHARS = 200
MAX_DEPTH = 64  # Python's JSON parser fails at about 1,000
MAX_DIGITS = 4_300  # the longest integer that Python parses
# A Parquet file may unpack to this much, or to this many times its size.
MAX_UNPACKED_BYTES = 2 * 2**30
UNPACKED_FLOOR_BYTES = 64 * 2**20
MAX_UNPACKED_RATIO = 100

PREVIEW_ROWS = 20
PEEK_ROWS = 1_000  # column names come from these; a larger file needs a worker
PEEK_BYTES = 4 * MAX_LINE_CHARS + 2**20  # unpacked: more than the longest line
PREVIEW_CHARS = 2**20  # of the rows shown before an import, written as JSON
SHOWN_REFUSALS = 100  # different problems
SHOWN_PLACES = 3  # of a problem
REPORT_BYTES = 4 * 2**20  # between progress reports of a reader
COPY_BYTES = 8 * 2**20  # what is stored at a time

# Uploads, imports and checkpoints leave this much to the database. A run that trains
# here pauses at half of it, and its last lines wait in its log at a quarter.
RESERVED_BYTES = 2**30
# Imported in the request: takes about a second.
AT_ONCE_BYTES = 2**20  # unpacked


def check_disk_space(num_bytes: int, *, purpose: str) -> None:
    """UserError if this many bytes would fill the disk.

    Some space stays free for the database, which stops on a full disk.
    """
    # the child that reads Parquet imports this module, and writes no templates
    from dashboard.accounts.templatetags.numbers import (  # noqa: PLC0415 - see above
        num_bytes as size,
    )

    settings.COHORT_DATA.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.COHORT_DATA).free
    if free - num_bytes < RESERVED_BYTES:
        raise UserError(
            "disk_full",
            f"The disk of {settings.COHORT_DATA} has {size(free)} left; {purpose} "
            f"needs {size(num_bytes)}, and {size(RESERVED_BYTES)} must stay free. Free "
            "some space, then try again.",
        )


def check_disk_space_to_store(num_bytes: int, *, purpose: str) -> None:
    """Check the disk on which an embedded database stores rows, indexes and a log."""
    if settings.DATABASE_IS_EMBEDDED:
        check_disk_space(3 * num_bytes, purpose=purpose)


def is_disk_full(*, share: float = 1) -> bool:
    """Return whether less than a share of an embedded database's reserve is free."""
    return settings.DATABASE_IS_EMBEDDED and (
        shutil.disk_usage(settings.COHORT_DATA).free < share * RESERVED_BYTES
    )
