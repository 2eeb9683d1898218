"""Pages that look for as long as there is something to find.

How far a page comes in half a second says how busy the machine is. Tests of what it
says when it did not come to the end set its seconds themselves.
"""

from __future__ import annotations

import importlib

LOOKING = {
    "dashboard.datasets.row_pages": ("SEARCH_SECONDS", "COUNT_SECONDS"),
    "dashboard.pages.dataset_making": ("COUNT_SECONDS",),
    "dashboard.analysis.rescoring.selection": ("MAX_SECONDS",),
    "dashboard.rewards.row_checks": ("REFERENCE_SECONDS", "BASELINE_SECONDS"),
    "dashboard.samples.rendering": ("PAGE_SECONDS",),
    "dashboard.operations.metrics": ("STATEMENT_SECONDS",),
}
SECONDS = 60


def raise_time_limits() -> None:
    """Web processes, which tests start too, have the seconds that users have."""
    for module, names in LOOKING.items():
        for name in names:
            loaded = importlib.import_module(module)
            assert hasattr(loaded, name), f"{module} has no {name}"
            setattr(loaded, name, SECONDS)
