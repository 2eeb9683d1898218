"""Points of history from which a database is brought up to date.

A point is the last migrations that were there; what they depend on comes with them.
Until there are releases, they are those just before each migration that moves data, and
0.1.0, of which the leaves are recorded. A release adds its own.
"""

from __future__ import annotations

from tests.upgrades.baseline import LEAVES

VERSIONS: dict[str, list[tuple[str, str]]] = {
    "the first tables": [
        ("samples", "0001_initial"),
        ("training", "0001_initial"),
    ],
    "what rules print lies with completions": [("samples", "0004_rule_note")],
    "one click, two imports": [
        ("datasets", "0011_fetched_uploads"),
        ("samples", "0011_group_tokens"),
        ("alerts", "0001_initial"),
    ],
    "no run table": [("runs", "0011_run_table"), ("samples", "0012_completion_blocks")],
    "a row each completion": [
        ("runs", "0015_completions_deleted"),
        ("samples", "0014_values_an_import_lacks"),
        ("insights", "0001_votes"),
        ("upkeep", "0002_completion_days"),
    ],
    "0.1.0": sorted(LEAVES.items()),
}
# No release had these; `make soak` begins with them.
LONG_AGO = {
    "the first tables",
    "what rules print lies with completions",
    "one click, two imports",
    "no run table",
}
# Each migration that moves data, and the point just before it.
MOVES_DATA = {
    ("accounts", "0003_audit_entries_stay"): "the first tables",  # a trigger alone
    ("alerts", "0002_run_events"): "one click, two imports",
    ("datasets", "0012_rows_of_versions"): "one click, two imports",
    ("datasets", "0014_statistics_count_once"): "one click, two imports",
    ("runs", "0012_fill_metric_summaries"): "no run table",
    ("samples", "0005_logs_become_notes"): "what rules print lies with completions",
    ("samples", "0012_completion_blocks"): "one click, two imports",  # storage alone
    ("insights", "0002_votes_by_place"): "a row each completion",
    ("runs", "0017_vacuum_sooner"): "a row each completion",  # storage alone
    ("samples", "0015_group_completions"): "a row each completion",  # storage alone
    ("samples", "0016_pack_completions"): "a row each completion",
    ("samples", "0017_unpack_backwards"): "a row each completion",
    ("samples", "0018_delete_completion"): "a row each completion",
    ("samples", "0019_vacuum_sooner"): "a row each completion",  # storage alone
}
