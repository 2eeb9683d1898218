"""Answers that are files, sent while they are made, and files that come in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.http import content_disposition_header

from dashboard.datasets.limits import PART_BYTES
from dashboard.datasets.views.download import Streamed

# What an operation that answers with a file declares.
FILE: Any = {200: bytes}
# What an operation that takes a part of one does.
PART = {
    "requestBody": {
        "description": f"Bytes of the file, 1 to {PART_BYTES:,}.",
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"}
            }
        },
    }
}


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
