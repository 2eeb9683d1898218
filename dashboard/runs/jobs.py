"""The kind of job that downloads a model."""

from __future__ import annotations

from dashboard.jobs.kinds import Kind, register
from dashboard.runs.launch.language_model import KIND, download_model

register(Kind(name=KIND, run=download_model, noun="download"))
