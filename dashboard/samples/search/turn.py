from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

ADVISORY_LOCK = 0x436F6C73  # any number of our own, the same in every process


@contextmanager
def take_turn() -> Iterator[bool]:
    """Whether nobody else makes blocks; held by this session, so it ends with it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [ADVISORY_LOCK])
        (is_mine,) = cursor.fetchone()
        try:
            yield is_mine
        finally:
            if is_mine:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [ADVISORY_LOCK])
