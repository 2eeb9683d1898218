"""What supervisors count, see meters/catalog.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from dashboard.meters.shared import count, observe_lag
from trainer.events import Event, GroupScored


def count_stored(run_id: int, events: Sequence[Event]) -> None:
    """Of a transaction that has committed; its lag is that of its oldest event."""
    if not events:
        return
    groups = [event for event in events if isinstance(event, GroupScored)]
    num_completions = sum(len(group.completions) for group in groups)
    count("cohort_ingested_events_total", len(events))
    if num_completions:
        count("cohort_ingested_completions_total", num_completions)
    observe_lag(run_id, time.time() - min(event.time for event in events))


def count_renewal(outcome: Literal["renewed", "failed", "fenced"]) -> None:
    count("cohort_lease_renewals_total", outcome=outcome)
