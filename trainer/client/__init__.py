"""Cohort from outside: report a training, and ask a server, by HTTP.

Only the standard library is imported, so it runs beside any trainer.
"""

from __future__ import annotations

from trainer.client.api.client import Client
from trainer.client.api.run import Run, RunDetail
from trainer.client.http import Refused, Unreachable
from trainer.client.lines import Completion
from trainer.client.reporter import Reporter

__all__ = [
    "Client",
    "Completion",
    "Refused",
    "Reporter",
    "Run",
    "RunDetail",
    "Unreachable",
]
