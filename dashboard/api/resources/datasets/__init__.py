"""Datasets: read, uploaded, fetched."""

from __future__ import annotations

from dashboard.api.resources.datasets import fetches, imports, reading, uploads

ROUTERS = [
    ("", reading.router),
    ("", imports.router),
    ("/dataset-uploads", uploads.router),
    ("", fetches.router),
]
