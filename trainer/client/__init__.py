"""Client of a Cohort server: report runs trained elsewhere, and call the API.

It needs only the standard library, so it fits into any training environment, and numpy
for `Reporter.log_mismatch` alone.
"""

from __future__ import annotations

from trainer.client.api import Client
from trainer.client.api.run import Run, RunDetail
from trainer.client.http import Refused, Unreachable
from trainer.client.lines import Completion, Turn
from trainer.client.reporter import Reporter

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
