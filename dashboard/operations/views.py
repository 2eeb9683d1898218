"""The operators' pages about the server, and what programs read: health and metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db.models import Count, F, Min
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from dashboard.accounts.templatetags.numbers import duration, num_bytes
from dashboard.help.pages import parse_document, render_document
from dashboard.observability.requests import is_of_this_machine
from dashboard.operations.backups import LAST_BACKUP
from dashboard.operations.health_checks import Report, State, read_report
from dashboard.operations.metrics import exposition
from dashboard.project.database import fetch_all
from dashboard.runs.models import HELD, Run, RunState
from dashboard.runs.trash import NUM_DELETED
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import GONE_AFTER

WORDS: dict[State, str] = {"ok": "ok", "degraded": "check", "failed": "failed"}
MOST_ROWS = 50
LATE_SECONDS = 15.0
LONG_DELETION_SECONDS = 3_600.0  # at ten million completions in two minutes
OLD_BACKUP_DAYS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    name: str
    value: str  # with its unit
    state: State = "ok"
    advice: str = ""  # if it is not ok
    runbook: str = ""  # a heading of RUNBOOK.md
    link: str = ""  # where there is more

    @property
    def word(self) -> str:
        return WORDS[self.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    title: str
    key: str
    rows: Sequence[Row]
    empty: str = ""  # shown if there are no rows

    @property
    def num_bad(self) -> int:
        return sum(row.state != "ok" for row in self.rows)


def read_sections(report: Report) -> list[Section]:
    leased = list(
        Run.objects.filter(state__in=HELD, source={})
        .select_related("team")
        .order_by("pk")[: 4 * MOST_ROWS]
    )
    parts = [
        Row(
            name=part.name.capitalize(),
            value=part.value,
            state=part.state,
            advice=part.remedy,
            runbook=part.runbook,
        )
        for part in report.parts
    ]
    return [
        Section(title="Parts", key="parts", rows=parts),
        Section(
            title="Training workers",
            key="workers",
            rows=rows_of_workers(leased),
            empty="No training workers. Start one to train queued runs.",
        ),
        Section(
            title=f"Runs in training: {MOST_ROWS} of {len(leased):,}"
            if len(leased) > MOST_ROWS
            else "Runs in training",
            key="runs",
            rows=[_held(run) for run in leased[:MOST_ROWS]],
            empty="No runs in training.",
        ),
        Section(title="Data", key="data", rows=rows_of_data()),
    ]


def rows_of_workers(held: Sequence[Run]) -> list[Row]:
    by_worker: dict[str, list[Run]] = {}
    for run in held:
        by_worker.setdefault(run.worker, []).append(run)
    there = Worker.objects.filter(stopped_at=None).order_by("name")
    return [
        _worker(worker, by_worker.get(worker.name, [])) for worker in there[:MOST_ROWS]
    ]


def _worker(worker: Worker, runs: list[Run]) -> Row:
    silent = timezone.now() - worker.last_seen
    is_gone = silent > GONE_AFTER
    named = ", ".join(
        f"{run.name} ({run.state}, step {run.last_step:,})" for run in runs
    )
    drained = "; drained, so it accepts no new runs" if worker.drained_at else ""
    notice = f"; {worker.notice}" if worker.notice else ""
    return Row(
        name=worker.name,
        value=f"last heartbeat {silent.total_seconds():,.0f} s ago; {len(runs)} of "
        f"{worker.num_slots} slots{': ' if named else ''}{named}{drained}{notice}",
        state="failed" if is_gone else "ok",
        advice=f"Check its machine, {worker.host}, and restart the worker."
        if is_gone
        else "",
        runbook="a-worker-is-missing",
    )


def _held(run: Run) -> Row:
    seconds = (
        (run.lease_until - timezone.now()).total_seconds() if run.lease_until else 0
    )
    is_over = seconds <= 0
    lag = run.ingest_lag
    stored = "nothing stored yet" if lag is None else f"{lag:.2f} s from event to row"
    is_late = lag is not None and lag > LATE_SECONDS
    advice = ""
    if is_over:
        advice = "Cohort requeues the run. Check its worker and the periodic tasks."
    elif is_late:
        advice = "Its worker stores events late. Check the worker and the database."
    return Row(
        name=f"{run.name} of {run.team}",
        value=f"{stored}; lease {'over' if is_over else f'for {duration(seconds)}'}; "
        f"step {run.last_step:,} of {run.num_steps:,}",
        state="degraded" if advice else "ok",
        advice=advice,
        runbook="a-run-is-lost" if is_over else "a-run-is-slow",
        link=reverse("admin:runs_run_change", args=[run.pk]),
    )


def rows_of_data() -> list[Row]:
    ((size, used, most),) = fetch_all(
        "SELECT pg_database_size(current_database()), count(*),"
        " current_setting('max_connections')::int"
        " FROM pg_stat_activity WHERE datname = current_database()"
    )
    is_full = used > 0.8 * most
    return [
        _queue(),
        Row(name="Database size", value=num_bytes(size)),
        Row(
            name="Connections",
            value=f"{used:,} of {most:,}",
            state="degraded" if is_full else "ok",
            advice="Raise max_connections, or start fewer processes."
            if is_full
            else "",
            runbook="pages-are-slow",
        ),
        _deletions(),
        _backup(),
    ]


def _queue() -> Row:
    queued = Run.objects.filter(state=RunState.QUEUED, source={}, on_hold=False)
    totals = queued.aggregate(number=Count("pk"), age=Now() - Min("created_at"))
    there = Worker.objects.filter(
        stopped_at=None, drained_at=None, last_seen__gt=Now() - GONE_AFTER
    )
    lacks = totals["number"] > 0 and not there.exists()
    value = "none"
    if totals["number"]:
        age = duration(totals["age"].total_seconds())
        value = f"{totals['number']:,}, the oldest launched {age} ago"
    return Row(
        name="Queued runs",
        value=value,
        state="degraded" if lacks else "ok",
        advice="No worker accepts runs. Start a training worker." if lacks else "",
        runbook="a-run-stays-queued",
        link=f"{reverse('admin:runs_run_changelist')}?state__exact=queued",
    )


def _deletions() -> Row:
    name = "Rows of deleted runs"
    hidden = list(
        Run.everywhere.exclude(deleted_at=None)
        .order_by("deleted_at")
        .values_list(Now() - F("deleted_at"), "summary")
    )
    if not hidden:
        return Row(name=name, value="none waiting to be deleted")
    age, summary = hidden[0]
    runs = f"{len(hidden):,} run{'s'[: len(hidden) > 1]}"
    ago = age.total_seconds()
    is_late = ago > LONG_DELETION_SECONDS
    return Row(
        name=name,
        value=f"of {runs}; {summary.get(NUM_DELETED, 0):,} rows deleted of the oldest, "
        f"which was deleted {duration(ago)} ago",
        state="degraded" if is_late else "ok",
        advice="Check that beat and a default worker are running." if is_late else "",
        runbook="periodic-tasks-are-late",
    )


def _backup() -> Row:
    made = read_last_backup()
    if made is None:
        value, is_old = "none recorded", True
    else:
        ago = (timezone.now() - made["made_at"]).total_seconds()
        is_old = ago > OLD_BACKUP_DAYS * 86_400
        value = (
            f"{duration(ago)} ago, {num_bytes(made['num_bytes'])}, to {made['path']}"
        )
    return Row(
        name="Last backup",
        value=f"{value}; overdue after {OLD_BACKUP_DAYS} days",
        state="degraded" if is_old else "ok",
        advice="Run python manage.py backup FILE, ideally nightly and to another disk."
        if is_old
        else "",
        runbook="restore-a-backup",
    )


def read_last_backup() -> dict[str, Any] | None:
    path = Path(settings.COHORT_DATA) / LAST_BACKUP
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return {**made, "made_at": datetime.fromisoformat(made["made_at"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


RUNBOOK = Path(__file__).parent / "RUNBOOK.md"
REFUSAL = (
    "Only programs on the server can read this. To read it from elsewhere, set "
    "COHORT_METRICS_TOKEN and send it as “Authorization: Bearer …”.\n"
)


@never_cache
@require_safe
def server(request: HttpRequest) -> HttpResponse:
    sections = read_sections(async_to_sync(read_report)())
    context = {
        "sections": sections,
        "num_bad": sum(section.num_bad for section in sections),
    }
    return render(request, "operations/server.html", context)


@require_safe
def runbook(request: HttpRequest) -> HttpResponse:
    return render(request, "operations/runbook.html", {"text": runbook_as_html()})


@cache
def runbook_as_html() -> SafeString:
    """Headings bear the addresses that rows and alert rules name."""
    tokens = parse_document(RUNBOOK.read_text(encoding="utf-8"))
    return render_document(tokens, folder=RUNBOOK.parent)


# Read by programs.


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """This process is alive; /readyz says whether it can serve."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
@login_not_required
async def readyz(request: HttpRequest) -> JsonResponse:
    """Respond with 503 if pages could not be served whole; with the parts, to those who
    may see them.
    """
    report = await read_report()
    body: dict[str, object] = {"status": report.status}
    if may_see_server(request):
        body["parts"] = [part.as_json() for part in report.parts]
    return JsonResponse(body, status=200 if report.is_ready else 503)


@never_cache
@require_safe
@login_not_required
async def metrics(request: HttpRequest) -> HttpResponse:
    if not may_see_server(request):
        return HttpResponse(REFUSAL, status=403, content_type="text/plain")
    return HttpResponse(await exposition(), content_type=CONTENT_TYPE_LATEST)


def may_see_server(request: HttpRequest) -> bool:
    """Check a token. If one is set, everyone must send it:

    a proxy on this machine that hides its visitors could make them look local.
    """
    if settings.METRICS_TOKEN:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        is_right = constant_time_compare(token.strip(), settings.METRICS_TOKEN)
        return kind.lower() == "bearer" and is_right
    return is_of_this_machine(
        request.META.get("REMOTE_ADDR", ""),
        request.META.get("HTTP_HOST", ""),
        [name.lower() for name in request.headers],
    )
