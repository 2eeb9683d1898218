"""Client of a Cohort server: report runs trained elsewhere, and call the API.

It needs only the standard library, so it fits into any training environment, and numpy
for `Reporter.log_mismatch` alone.
"""

from __future__ import annotations

from cohort.api import Client
from cohort.api.run import Run, RunDetail
from cohort.http import Refused, Unreachable
from cohort.lines import Completion, Turn
from cohort.reporter import Reporter
from cohort.trl import add_to_transformers

add_to_transformers()

__all__ = [
    "Client",
    "Completion",
    "Refused",
    "Reporter",
    "Run",
    "RunDetail",
    "Turn",
    "Unreachable",
]
