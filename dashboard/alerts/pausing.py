"""A run that pauses because of an alert."""

from __future__ import annotations

from django.db.models import Q

from dashboard.alerts.models import Alert
from dashboard.runs.models import RunState
from dashboard.runs.state import transition


def pause_for(alert: Alert, *, when: Q) -> bool:
    """As a person's request; False when the run is not running, or outside.

    An open alert raises no second one, so a resumed run goes on until its condition
    has calmed and comes again.
    """
    name = alert.read_as["name"]
    is_pausing = transition(
        alert.run_id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.PAUSING,
        when=when & Q(origin={}),
        verb="run.pause_requested",
        detail={"alert": alert.pk},
        pause_reason=f"The alert “{name}” asked for it at step {alert.step}: "
        f"{alert.read_as['text']}.",
    )
    if is_pausing:
        Alert.objects.filter(pk=alert.pk).update(has_paused=True)
    return is_pausing
