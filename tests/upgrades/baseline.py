"""Up to where migrations are as they are, and what of them is known.

Nobody runs a released Cohort of before: 0.1.0 is the first. Migrations behind these
leaves are held to what tests/upgrades asks of them.
"""

from __future__ import annotations

LEAVES = {
    "accounts": "0004_audit_entries_plural",
    "alerts": "0003_deliveries_tell_their_event",
    "api": "0001_tokens",
    "datasets": "0014_statistics_count_once",
    "exchange": "0001_imports_of_runs",
    "insights": "0002_votes_by_place",
    "probes": "0003_chats_are_followed",
    "reports": "0001_initial",
    "rescoring": "0001_rescorings",
    "rewards": "0001_initial",
    "runs": "0017_vacuum_sooner",
    "samples": "0019_vacuum_sooner",
    "training": "0002_drained_workers_and_system_samples",
    "upkeep": "0002_completion_days",
}

# What migrations up to there do that later ones may not, and why it stays.
KNOWN = {
    ("accounts", "0003_audit_entries_stay"): {
        "accounts_auditentry: keeps writers out while an index is built"
    },
    ("runs", "0005_rollups_and_chart_settings"): {
        "runs_step: keeps writers out while an index is built"
    },
    # It changes one setting of an empty table, and fills that a run at a time.
    ("runs", "0012_fill_metric_summaries"): {"Python beside a change of the schema"},
    ("samples", "0005_logs_become_notes"): {
        "samples_group: changes many rows within the transaction of a change of "
        "the schema"
    },
    # What a process of before stored meanwhile is brought over, and the table goes.
    ("samples", "0018_delete_completion"): {"Python beside a change of the schema"},
}
