"""Answers that are files, sent while they are made, and files that come in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from django.http import HttpRequest
from django.utils.http import content_disposition_header
from ninja import Query

from dashboard.api.problems import Problem, refuse_field
from dashboard.datasets.limits import PART_BYTES
from dashboard.datasets.uploads import OffsetMismatch
from dashboard.project.downloads import Streamed

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
Offset = Annotated[
    int,
    Query(
        ...,
        ge=0,
        le=2**60,
        description="Where it begins in the file: its `num_received`.",
        examples=[8_388_608],
    ),
]


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


@contextmanager
def part_problems(num_received: Callable[[], int], offset: int) -> Iterator[None]:
    """409 where the file ends elsewhere, or the disk is full; 422 for an unfit part."""
    try:
        yield
    except OffsetMismatch:
        said = f"The file goes on at byte {num_received():,}; got {offset:,}."
        raise Problem(409, said, errors=[("query.offset", said)]) from None
    except ValueError as error:
        raise refuse_field("body", str(error)) from error
    except OSError as error:
        said = f"The part could not be stored: {error.strerror or error}. Free some"
        raise Problem(409, f"{said} space on the server, then go on.") from error


def size_of(request: HttpRequest) -> int:
    """Of the body, by its header; 0 where that is no number."""
    size = request.headers.get("Content-Length", "")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 19 else 0
