"""A run as one of the files that it can be taken as."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from django.utils.http import content_disposition_header

from dashboard.datasets.views.download import Streamed
from dashboard.exchange.exports.archives import (
    folder_name,
    write_tensorboard,
)
from dashboard.exchange.exports.completions import completions_table
from dashboard.exchange.exports.metrics import metrics_table
from dashboard.exchange.exports.span import Span
from dashboard.exchange.exports.tables import TYPES, WRITERS
from dashboard.runs.models import Run

FileName = Literal[
    "metrics.csv",
    "metrics.jsonl",
    "metrics.parquet",
    "completions.csv",
    "completions.jsonl",
    "completions.parquet",
    "tensorboard.zip",
]
TABLES = {"metrics": metrics_table, "completions": completions_table}
ARCHIVES = {"tensorboard": write_tensorboard}


def send_file(run: Run, span: Span, file: str) -> Streamed:
    """Sent while it is read, so that nothing is held but a part of it."""
    name, suffix = file.rsplit(".", 1)
    attached = f"{folder_name(run)}-{_named(name, span)}.{suffix}"
    return Streamed(
        _pieces(run, span, name, suffix),
        content_type=TYPES.get(suffix, "application/zip"),
        headers={
            "Content-Disposition": content_disposition_header(True, attached) or ""
        },
    )


def _pieces(run: Run, span: Span, name: str, suffix: str) -> Iterator[bytes]:
    if name in ARCHIVES:
        return ARCHIVES[name](run, span)
    return WRITERS[suffix](TABLES[name](run, span))


def _named(name: str, span: Span) -> str:
    """A part of a run is not called like the whole."""
    if span.is_all:
        return name
    last = "end" if span.last == Span().last else span.last
    return f"{name}-steps-{span.first}-{last}"
