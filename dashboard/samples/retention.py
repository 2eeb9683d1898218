"""Deleting a run's completions; what was made of them, its groups and charts, stays."""

from __future__ import annotations

import time
from collections.abc import Collection

from celery import shared_task
from django.db import connection

from dashboard.jobs import shutdown
from dashboard.runs.models import Run
from dashboard.samples.models import CompletionBlock, Group
from dashboard.samples.search.indexing import index_run, runs_to_index, search_slot

GROUPS_AT_A_TIME = 2_000
# Raw, as there may be millions, and nothing hangs on them but what goes with them.
OF_GROUPS = (
    "DELETE FROM samples_grouptokens WHERE group_id = ANY(%s)",
    "DELETE FROM samples_rulenote WHERE group_id = ANY(%s)",
)
COMPLETIONS = """
WITH gone AS (
    DELETE FROM samples_groupcompletions WHERE group_id = ANY(%s)
    RETURNING cardinality(end_reasons) AS num
)
SELECT coalesce(sum(num), 0) FROM gone
"""


def delete_completions_of(run: Run, *, keep: Collection[int]) -> int:
    """Of all groups but those to keep; how many completions went.

    Their tokens and what rules printed go too, and the blocks they are searched in,
    which a worker makes anew of what is kept. For use within a transaction.
    """
    groups = Group.objects.filter(run=run).order_by("pk").values_list("pk", flat=True)
    going = sorted(set(groups) - set(keep))
    CompletionBlock.objects.filter(run=run).delete()
    with connection.cursor() as cursor:
        num_deleted = 0
        for first in range(0, len(going), GROUPS_AT_A_TIME):
            part = going[first : first + GROUPS_AT_A_TIME]
            for statement in OF_GROUPS:
                cursor.execute(statement, [part])
            cursor.execute(COMPLETIONS, [part])
            num_deleted += int(cursor.fetchone()[0])
    return num_deleted


SECONDS = 8.0  # beat rings every ten


@shared_task(name="samples.index", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def index() -> None:
    """Make blocks of the steps that have none, for a while."""
    until = time.monotonic() + SECONDS
    with search_slot() as is_mine:
        if not is_mine:
            return
        for run in runs_to_index():
            if shutdown.is_announced() or time.monotonic() >= until:
                return
            index_run(run, until=until)
