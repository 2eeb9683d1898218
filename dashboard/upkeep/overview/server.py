"""Sockets, the database and backups: rows of the operators' page."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import duration, num_bytes
from dashboard.meters.reading import read_told
from dashboard.meters.shared import connect
from dashboard.meters.web import registry
from dashboard.runs.models import Run
from dashboard.runs.trash import NUM_DELETED
from dashboard.upkeep.backups.making import LAST_BACKUP
from dashboard.upkeep.overview.rows import Row, Section

MOST_STATEMENTS = 5
SLOW_SECONDS = 10.0
LONG_DELETION_SECONDS = 3_600.0  # at ten million completions in two minutes
OLD_BACKUP_DAYS = 7
# Never the statement itself: it may hold a prompt.
STATEMENTS = """
    SELECT pid, state, query, extract(epoch FROM now() - coalesce(
               CASE WHEN state = 'active' THEN query_start ELSE xact_start END,
               query_start)),
           cardinality(pg_blocking_pids(pid))
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND state IN ('active', 'idle in transaction')
      AND application_name <> 'cohort readyz'
    ORDER BY 4 DESC NULLS LAST LIMIT %s
"""
# Texts and comments, maybe cut off; quoted names, which may hold a quote, are kept.
TEXT = re.compile(
    r"""(?P<name>"[^"]*"?)
    | (?<!\w)E'(?:[^'\\]|\\.?|'')*'? | '[^']*'?
    | \$(?P<tag>[a-z_]\w*|)\$.*?(?:\$(?P=tag)\$|\Z)
    | --[^\n]* | /\*.*?(?:\*/|\Z)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
KIND = re.compile(
    r"""\s* (?:
        (UPDATE|COPY) \s+ (?:ONLY\s+)? "?(\w+)
        | (\w+) (?: .*? \b(?:FROM|INTO|UPDATE|TABLE) \s+ (?:ONLY\s+)? "?(\w+) )?
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def rows_of_sockets() -> Section:
    number = int(registry.get_sample_value("cohort_sockets_open") or 0)
    frames = int(registry.get_sample_value("cohort_socket_frames_total") or 0)
    rows = [
        Row(
            name="Open sockets",
            value=f"{number:,} of this web process; {frames:,} frames since its start",
            runbook="pages-are-not-live",
        )
    ]
    try:
        with connect() as client:
            told = read_told(client)
    except (redis.RedisError, OSError):
        return Section(title="Live pages", key="sockets", rows=rows)
    dropped = told.totals.get("cohort_doorbells_dropped_total", {})
    for pairs, count in dropped.items():
        reason = dict(pairs)["reason"]
        rows.append(
            Row(
                name=f"Doorbells dropped ({reason})",
                value=f"{count:,.0f} since Redis began; each costs a page 2 s",
                runbook="pages-are-not-live",
            )
        )
    if not dropped:
        value = "none since Redis began"
        rows.append(Row(name="Doorbells dropped", value=value))
    for queue, waiting in told.num_messages.items():
        rows.append(
            Row(
                name=f"Messages for {queue} workers",
                value=f"{waiting:,} that no worker has taken",
                state="degraded" if waiting > 100 else "ok",
                advice="Start a worker of this queue." if waiting > 100 else "",
                runbook="beat-or-the-default-worker-is-silent",
            )
        )
    return Section(title="Live pages", key="sockets", rows=rows)


def rows_of_database() -> Section:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        size = cursor.fetchone()[0]
        cursor.execute(
            "SELECT count(*), current_setting('max_connections')::int"
            " FROM pg_stat_activity WHERE datname = current_database()"
        )
        used, most = cursor.fetchone()
        cursor.execute(STATEMENTS, [MOST_STATEMENTS])
        statements = cursor.fetchall()
    many = used > 0.8 * most
    rows = [
        Row(name="Size", value=num_bytes(size), runbook="the-disk-is-full"),
        Row(
            name="Connections",
            value=f"{used:,} of {most:,}",
            state="degraded" if many else "ok",
            advice="Raise max_connections, or start fewer processes." if many else "",
            runbook="pages-are-slow",
        ),
        _deletions(),
        *(_statement(*found) for found in statements),
    ]
    return Section(title="Database", key="database", rows=rows)


def _deletions() -> Row:
    name = "Rows of deleted runs"
    hidden = list(
        Run.everywhere.exclude(deleted_at=None)
        .order_by("deleted_at")
        .values_list(Now() - F("deleted_at"), "summary")
    )
    if not hidden:
        return Row(name=name, value="none waits to be deleted")
    age, summary = hidden[0]
    runs = f"{len(hidden):,} run{'s'[: len(hidden) > 1]}"
    ago = age.total_seconds()
    is_late = ago > LONG_DELETION_SECONDS
    return Row(
        name=name,
        value=f"of {runs}; {summary.get(NUM_DELETED, 0):,} rows of the one that was "
        f"deleted first, {duration(ago)} ago, are gone",
        state="degraded" if is_late else "ok",
        advice="Look whether beat and a default worker are there." if is_late else "",
        runbook="beat-or-the-default-worker-is-silent",
    )


def _statement(
    pid: int, state: str, query: str, seconds: Any, num_blocking: int
) -> Row:
    took = float(seconds or 0)
    is_bad = took > SLOW_SECONDS or num_blocking > 0
    blocked = f"; waits for {num_blocking} other" if num_blocking else ""
    return Row(
        name=f"Statement of {pid}",
        value=f"{describe(query)}, {state} for {took:,.1f} s{blocked}",
        state="degraded" if is_bad else "ok",
        advice=f"If it stays: SELECT pg_cancel_backend({pid})" if is_bad else "",
        runbook="pages-are-slow",
    )


def describe(query: str) -> str:
    """
    >>> describe("SELECT x FROM runs_run WHERE name = 'secret'")
    "SELECT runs_run"
    """
    found = KIND.match(TEXT.sub(lambda text: text["name"] or " ", query))
    return " ".join(filter(None, found.groups())) if found else "a statement"


def rows_of_backups() -> Section:
    return Section(title="Backups", key="backups", rows=[_backup()])


def _backup() -> Row:
    made = read_last_backup()
    advice = "Run: python manage.py backup FILE, on another disk, best each night."
    if made is None:
        value, state = "none since this version keeps count", True
    else:
        ago = (timezone.now() - made["made_at"]).total_seconds()
        state = ago > OLD_BACKUP_DAYS * 86_400
        value = (
            f"{duration(ago)} ago, {num_bytes(made['num_bytes'])}, to {made['path']}"
        )
    return Row(
        name="Last backup",
        value=f"{value}; old after {OLD_BACKUP_DAYS} days",
        state="degraded" if state else "ok",
        advice=advice if state else "",
        runbook="restore-a-backup",
    )


def read_last_backup() -> dict[str, Any] | None:
    path = Path(settings.COHORT_DATA) / LAST_BACKUP
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return {**made, "made_at": datetime.fromisoformat(made["made_at"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
