"""What a channel is told of runs: how each ends, and that it waits for somebody."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver
from django.utils import timezone

from dashboard.alerts.message import describe_run
from dashboard.alerts.models import Event, MutedRun
from dashboard.alerts.outbox import put_out
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import run_moved

EVENTS = {
    RunState.FINISHED: Event.RUN_FINISHED,
    RunState.FAILED: Event.RUN_FAILED,
    RunState.STOPPED: Event.RUN_STOPPED,
    RunState.PAUSED: Event.RUN_PAUSED,
}


@receiver(run_moved)
def tell(run: Run, **_: Any) -> None:
    """Within the transition: it is told of once, and of nothing that did not happen."""
    event = EVENTS.get(RunState(run.state))
    if event is None:
        return
    muted = MutedRun.objects.filter(run=run, until__gt=timezone.now())
    if not muted.exists():
        put_out(run.team_id, event, run=run, told=describe_run(run))
