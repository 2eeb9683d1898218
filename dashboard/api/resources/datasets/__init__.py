"""Datasets: read, uploaded, fetched, made of others, looked through."""

from __future__ import annotations

from dashboard.api.resources.datasets import (
    fetches,
    findings,
    imports,
    making,
    reading,
    splits,
    uploads,
)

ROUTERS = [
    ("", reading.router),
    ("", imports.router),
    ("/dataset-uploads", uploads.router),
    ("", fetches.router),
    ("", making.router),
    ("", splits.router),
    ("", findings.router),
]
