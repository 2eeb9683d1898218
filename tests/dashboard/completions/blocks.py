"""Blocks of completions as the worker makes them."""

import time

from dashboard.completions.models import Group
from dashboard.completions.search.indexing import index_run
from dashboard.runs.models import Run


def make_blocks(run: Run) -> int:
    """Of all steps that have groups, which are over then; how many were made."""
    run.refresh_from_db()
    run.last_step = Group.objects.filter(run=run).latest("step").step
    run.save(update_fields=["last_step"])
    return index_run(run, until=time.monotonic() + 60)
