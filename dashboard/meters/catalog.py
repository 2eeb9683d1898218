"""What the processes count together, with what each metric tells."""

from __future__ import annotations

from types import MappingProxyType

COUNTERS = MappingProxyType(
    {
        "cohort_ingested_events_total": "Events of trainers that were stored.",
        "cohort_ingested_completions_total": "Completions that were stored.",
        "cohort_lease_renewals_total": (
            "Leases of runs that were renewed, could not be (failed: the database was "
            "away) or were another's by then (fenced), by outcome."
        ),
        "cohort_doorbells_dropped_total": (
            "Rings that no page heard; each costs 2 s. By reason: full, a channel of "
            "the layer held all it may; redis, it could not be reached."
        ),
        "cohort_tasks_total": "Tasks that workers ended, by task and state.",
    }
)
HISTOGRAMS = MappingProxyType(
    {
        "cohort_ingest_lag_seconds": "From an event's time to its row's commit.",
    }
)
LAG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1_800.0)
# Whoever is expected to be heard from, and how often it speaks.
HEARD_SECONDS = MappingProxyType(
    {"beat": 5, "default worker": 5, "dispatch": 5, "reap": 5}
)
