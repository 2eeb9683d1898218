"""The log as a file: JSONL for programs, CSV for people with a spreadsheet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC
from typing import Any

from django.db.models import QuerySet

from dashboard.accounts.models import AuditEntry
from dashboard.datasets.row_exports import defused

AT_A_TIME = 1_000
COLUMNS = (
    *("id", "time", "person", "person_id", "verb", "object_type", "object_id"),
    *("address", "agent", "program", "is_erased", "detail"),
)
TYPES = {"jsonl": "application/jsonl", "csv": "text/csv"}


def jsonl_lines(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    for row in _rows(entries):
        yield json.dumps(row, ensure_ascii=False) + "\n"


def csv_lines(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    """With a mark at the beginning by which spreadsheets know UTF-8."""
    writer = csv.writer(_Line())
    yield "\ufeff" + writer.writerow(COLUMNS)
    for row in _rows(entries):
        yield writer.writerow([_cell(row[name]) for name in COLUMNS])


WRITERS = {"jsonl": jsonl_lines, "csv": csv_lines}


def _rows(entries: QuerySet[AuditEntry]) -> Iterator[dict[str, Any]]:
    """The newest first, some at a time: a log may be long, and its reader slow."""
    page = list(entries[:AT_A_TIME])
    while page:
        for entry in page:
            yield row_of(entry)
        page = list(entries.filter(pk__lt=page[-1].pk)[:AT_A_TIME])


def row_of(entry: AuditEntry) -> dict[str, Any]:
    person = entry.actor
    return {
        "id": entry.pk,
        "time": entry.created_at.astimezone(UTC).isoformat(),
        "person": person.username if person else None,
        "person_id": entry.actor_id,
        "verb": entry.verb,
        "object_type": entry.object_type,
        "object_id": entry.object_id,
        "address": entry.address,
        "agent": entry.agent,
        "program": entry.program,
        "is_erased": entry.is_erased,
        "detail": entry.detail,
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return defused(json.dumps(value, ensure_ascii=False))
    return defused(str(value))


class _Line:
    """What csv writes to: `writerow` gives the line back."""

    def write(self, line: str) -> str:
        return line
