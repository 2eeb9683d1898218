from __future__ import annotations

from celery import shared_task

from dashboard.accounts.models import Team
from dashboard.upkeep import old_completions, retention
from dashboard.upkeep.measuring import measure


@shared_task(name="upkeep.measure", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def measure_all() -> None:
    for team in Team.objects.all():
        measure(team)


@shared_task(name="upkeep.retain", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def retain() -> None:
    retention.apply()
    old_completions.apply_to_completions()
