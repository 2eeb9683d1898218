"""Raise the time limits of page queries, so that tests do not depend on the load.

Tests of a limit set it themselves.
"""

import importlib

LIMITS = {
    "dashboard.datasets.row_pages": ("SEARCH_SECONDS", "COUNT_SECONDS"),
    "dashboard.pages.dataset_making": ("COUNT_SECONDS",),
    "dashboard.analysis.rescoring.services": ("MAX_SECONDS",),
    "dashboard.rewards.checks": ("REFERENCE_SECONDS", "BASELINE_SECONDS"),
    "dashboard.completions.rendering": ("PAGE_SECONDS",),
    "dashboard.operations.metrics": ("STATEMENT_SECONDS",),
}
SECONDS = 60


def raise_time_limits() -> None:
    """In this process only; web processes started by tests keep the real limits."""
    for module, names in LIMITS.items():
        for name in names:
            loaded = importlib.import_module(module)
            assert hasattr(loaded, name), f"{module} has no {name}"
            setattr(loaded, name, SECONDS)
