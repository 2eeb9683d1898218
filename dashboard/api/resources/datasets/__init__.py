"""Datasets: read, uploaded, fetched, made of others, looked through, put away."""

from __future__ import annotations

from dashboard.api.resources.datasets import (
    fetches,
    findings,
    imports,
    making,
    previews,
    reading,
    splits,
    trash,
    uploads,
)

# What puts away what others look for comes last.
ROUTERS = [
    ("", reading.router),
    ("", imports.router),
    ("/dataset-uploads", uploads.router),
    ("", fetches.router),
    ("", previews.router),
    ("", making.router),
    ("", splits.router),
    ("", findings.router),
    ("", trash.router),
]
