"""Which request a run's present life goes back to: its launch, or a resume.

A claim may follow long after, of another run than the one whose message woke the
worker; so it is read where the act is written down.
"""

from __future__ import annotations

from django.db import InterfaceError, OperationalError

from dashboard.accounts.models import AuditEntry
from dashboard.runs.models import Run

QUEUEING = ("run.launched", "run.resume_requested", "run.extended")


def asked_by(run_id: int) -> dict[str, str | None]:
    """Team and request, for the log; nothing where the database does not say."""
    try:
        run = Run.objects.select_related("team").get(id=run_id)
        entries = AuditEntry.objects.filter(
            team=run.team, object_type="run", object_id=run_id, verb__in=QUEUEING
        )
        asked = entries.order_by("-id").values_list("detail__request_id", flat=True)
        return {"team": run.team.slug, "request_id": asked.first()}
    except (OperationalError, InterfaceError, Run.DoesNotExist):
        return {}
