"""An import is asked to be read, or made a run of, and stopped."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dashboard.exchange.imports.files import is_quick
from dashboard.exchange.models import RunImport
from dashboard.jobs.queue import enqueue, notify_workers
from dashboard.jobs.runner import run_now


def start(run_import: RunImport, kind: str, **fields: Any) -> bool:
    """Let it be read, or made; False where it is at work, or made already.

    What is small is done at once, while the page is made.
    """
    with transaction.atomic():
        held = RunImport.objects.select_for_update(of=("self",))
        row = held.select_related("job").get(pk=run_import.pk)
        if row.is_open or row.run_id:
            return False
        num_bytes = sum(row.files.values_list("num_bytes", flat=True))
        for name, value in fields.items():
            setattr(row, name, value)
        row.job = job = enqueue(
            kind,
            row.pk,
            team_id=row.team_id,
            user=row.created_by,
            total=num_bytes,
            unit="bytes",
            notify=False,
        )
        row.save(update_fields=["job", *fields])
    if is_quick(row):
        run_now(job)
    else:
        transaction.on_commit(lambda: notify_workers("default"))
    run_import.refresh_from_db()
    return True
