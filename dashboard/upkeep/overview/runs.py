"""Workers, the queue, and what is under way: rows of the operators' page."""

from __future__ import annotations

from collections.abc import Iterable

import redis
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import duration
from dashboard.meters.reading import read_lags
from dashboard.meters.shared import connect
from dashboard.runs.models import HELD, Run
from dashboard.runs.queue.line import Line, Place, read_line
from dashboard.runs.queue.sentences import say_place
from dashboard.training.models import Worker
from dashboard.training.workers import GONE_AFTER
from dashboard.upkeep.overview.rows import Row, Section

MOST_ROWS = 50
LATE_SECONDS = 15.0


def rows_of_workers(held: Iterable[Run]) -> Section:
    by_worker: dict[str, list[Run]] = {}
    for run in held:
        by_worker.setdefault(run.worker, []).append(run)
    there = Worker.objects.filter(stopped_at=None).order_by("name")
    rows = [_worker(one, by_worker.get(one.name, [])) for one in there[:MOST_ROWS]]
    empty = "No training worker is there: queued runs wait. Start one."
    return Section(title="Training workers", key="workers", rows=rows, empty=empty)


def _worker(worker: Worker, runs: list[Run]) -> Row:
    silent = timezone.now() - worker.last_seen
    is_gone = silent > GONE_AFTER
    named = ", ".join(
        f"{run.name} ({run.state}, step {run.last_step:,})" for run in runs
    )
    drained = "; drained, so it takes nothing new" if worker.drained_at else ""
    notice = f"; {worker.notice}" if worker.notice else ""
    return Row(
        name=worker.name,
        value=f"heard {silent.total_seconds():,.0f} s ago; {len(runs)} of "
        f"{worker.num_slots} slots{': ' if named else ''}{named}{drained}{notice}",
        state="failed" if is_gone else "ok",
        advice=f"Look at its machine {worker.host}, and start it again."
        if is_gone
        else "",
        runbook="a-worker-is-missing",
    )


def rows_of_queue() -> Section:
    line = read_line()
    places = list(line.places.values())[:MOST_ROWS]
    runs = Run.objects.select_related("team").only("name", "team__name")
    named = runs.in_bulk([place.waiting.run_id for place in places])
    shown = [place for place in places if place.waiting.run_id in named]
    rows = [_queued(place, line, named[place.waiting.run_id]) for place in shown]
    cut = (
        f": {len(rows)} of {len(line.places):,}" if len(rows) < len(line.places) else ""
    )
    return Section(
        title=f"Queue{cut}", key="queue", rows=rows, empty="No run waits for a worker."
    )


def _queued(place: Place, line: Line, run: Run) -> Row:
    return Row(
        name=f"{run.name} of {run.team}",
        value=say_place(place, line) or "tried again soon",
        state="degraded" if place.lack else "ok",
        advice="Start a worker that suits it, or change its settings."
        if place.lack
        else "",
        runbook="a-run-stays-queued",
        link=reverse("admin:runs_run_change", args=[run.pk]),
    )


def held_runs() -> list[Run]:
    held = Run.objects.filter(state__in=HELD, origin={}).select_related("team")
    return list(held.order_by("pk")[: 4 * MOST_ROWS])


def rows_of_ingest(held: list[Run]) -> Section:
    shown = held[:MOST_ROWS]
    try:
        with connect() as client:
            lags = read_lags(client, [run.pk for run in shown])
    except (redis.RedisError, OSError):
        lags = {}
    rows = [_ingest(run, lags.get(run.pk)) for run in shown]
    cut = f": {len(rows)} of {len(held):,}" if len(rows) < len(held) else ""
    empty = "No run is in training."
    return Section(title=f"Ingest{cut}", key="ingest", rows=rows, empty=empty)


def _ingest(run: Run, told: tuple[float, float] | None) -> Row:
    if told is None:
        value = "nothing stored within 5 min"
        is_late = run.state == "running"
    else:
        lag, ago = told
        value = f"{lag:.2f} s from written to stored, {ago:,.0f} s ago"
        is_late = lag > LATE_SECONDS
    lease = (run.lease_until - timezone.now()).total_seconds() if run.lease_until else 0
    left = f"lease for {duration(lease)}" if lease > 0 else "lease over"
    is_over = lease <= 0
    return Row(
        name=f"{run.name} of {run.team}",
        value=f"{value}; {left}; step {run.last_step:,} of {run.num_steps:,}",
        state="degraded" if is_late or is_over else "ok",
        advice=_advice(is_over) if is_late or is_over else "",
        runbook="a-run-is-lost" if is_over else "a-run-is-slow",
        link=reverse("admin:runs_run_change", args=[run.pk]),
    )


def _advice(is_over: bool) -> str:
    if is_over:
        return "The reaper requeues it; look at its worker, and at beat."
    return "Read the end of its log: a step may take as long, or the trainer hangs."
