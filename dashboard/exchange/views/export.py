from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.exchange.export_runs import (
    completions_table,
    folder_name,
    groups_of,
    metric_names,
    metrics_table,
    send_file,
)
from dashboard.exchange.export_tables import Span, SpanForm, Table, jsonl_bytes
from dashboard.runs.models import Evaluation, Run, Step
from dashboard.runs.queries import get_run
from dashboard.samples.annotations import has_marks
from dashboard.samples.search.indexing import count_completions

MEASURED_ROWS = 200  # of which a file's size is told


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a table's files would hold."""

    num_rows: int
    num_all: int  # of the whole run
    num_bytes: int  # of the JSON lines; that of more than a few rows is an estimate


@require_safe
def run_export(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    """What can be taken of a run, and how much of it there is."""
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = SpanForm.read(request.GET)
    span = form.span if form.is_valid() else Span()
    context = {
        "team": team_,
        "run": run,
        "tab": "export",
        "form": form,
        "span": span,
        "metrics": _offer_metrics(run, span),
        "num_metrics": len(metric_names(run)),
        "completions": _offer_completions(run, span),
        "num_groups": groups_of(run, span).count(),
        "has_marks": has_marks(run),
        "folder": folder_name(run),
    }
    return render(request, "exchange/export.html", context)


def _offer_metrics(run: Run, span: Span) -> Offer:
    return _offer(
        metrics_table(run, span),
        num_rows=_num_points(run, span),
        num_all=_num_points(run, Span()),
    )


def _num_points(run: Run, span: Span) -> int:
    """Steps with a value; an evaluation may come before the first step. One query."""
    at = {"run": run, "superseded_by": None, "step__range": (span.first, span.last)}
    steps = Step.objects.filter(**at).values("step")
    evaluated = Evaluation.objects.filter(**at).values("step")
    return steps.union(evaluated).count()


def _offer_completions(run: Run, span: Span) -> Offer:
    taken, in_all = (
        count_completions(run, first=each.first, last=each.last)
        for each in (span, Span())
    )
    return _offer(completions_table(run, span), num_rows=taken, num_all=in_all)


def _offer(table: Table, *, num_rows: int, num_all: int) -> Offer:
    num_bytes, num_measured = jsonl_bytes(table, MEASURED_ROWS)
    if num_measured:
        num_bytes = num_bytes * num_rows // num_measured
    return Offer(num_rows=num_rows, num_all=num_all, num_bytes=num_bytes)


@require_safe
def run_export_file(
    request: HttpRequest, team: str, run_id: str, file: str
) -> HttpResponseBase:
    """Sent while it is read, so that nothing is held but a part of it."""
    run = get_run(get_team(request, team), int(run_id))
    form = SpanForm.read(request.GET)
    if not form.is_valid():
        return HttpResponse(
            " ".join(str(said) for each in form.errors.values() for said in each),
            status=422,
            content_type="text/plain; charset=utf-8",
        )
    return send_file(run, form.span, file)
