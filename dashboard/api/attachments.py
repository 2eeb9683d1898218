"""Answers that are files, sent while they are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.http import content_disposition_header

from dashboard.datasets.views.download import Streamed

# What an operation that answers with a file declares.
FILE: Any = {200: bytes}


def attach(
    pieces: Iterator[bytes] | Any, *, filename: str, content_type: str, **headers: str
) -> Streamed:
    """`headers` by their names with underscores: Content_Length."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    disposition = content_disposition_header(True, filename) or "attachment"
    return Streamed(
        pieces,
        content_type=content_type,
        headers={"Content-Disposition": disposition, **named},
    )
