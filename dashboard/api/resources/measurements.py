"""What a run measured: metrics by step, held-out evaluations, files."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.attachments import FILE
from dashboard.api.auth import READ, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.schemas import LARGEST_STEP, Id, Real, StepBound, fill
from dashboard.exchange.export_runs import (
    FileName,
    metric_names,
    read_points,
    send_file,
)
from dashboard.exchange.export_tables import Span
from dashboard.runs.models import Evaluation
from dashboard.runs.queries import get_run

router = Router(tags=["Measurements"], auth=READ)
MAX_POINTS = 10_000


class PointOut(Schema):
    step: int = Field(examples=[3])
    time: datetime
    values: dict[str, float] = Field(examples=[{"reward/mean": 0.31, "kl/mean": 0.002}])


class MetricsOut(Schema):
    run_id: int
    names: list[str] = Field(examples=[["reward/mean", "kl/mean"]])
    points: list[PointOut]
    next_cursor: str | None
    last_step: int = Field(description="Of the run, by now.")


@router.get("/{run_id}/metrics", response=MetricsOut, summary="Read metrics")
def metrics(
    request: HttpRequest,
    run_id: Id,
    cursor: Cursor,
    first_step: StepBound,
    last_step: StepBound,
    names: Annotated[
        str,
        Query(
            "",
            max_length=20_000,
            description="With commas between; without it, all of them.",
            examples=["reward/mean,kl/mean"],
        ),
    ],
    limit: Annotated[int, Query(1_000, ge=1, le=MAX_POINTS)],
) -> MetricsOut:
    """Every point, none thinned out, by rising step; held-out scores included.

    Values that are no numbers are left out.
    """
    found = get_run(access_of(request).team, run_id)
    known = metric_names(found)
    wanted = [name for name in names.split(",") if name] or known
    if unknown := [name for name in wanted if name not in known]:
        raise refuse_field("query.names", f"The run has no metric {unknown[0][:80]!r}.")
    span = span_of(first_step, last_step)
    if cursor:
        span = Span(max(span.first, read_cursor(cursor) + 1), span.last)
    points = list(islice(read_points(found, span), limit + 1))
    return MetricsOut(
        run_id=found.pk,
        names=wanted,
        points=[_point(point, set(wanted)) for point in points[:limit]],
        next_cursor=write_cursor(points[limit - 1].step) if points[limit:] else None,
        last_step=found.last_step,
    )


def _point(point: Any, names: set[str]) -> PointOut:
    values = {name: v for name, v in point.values.items() if name in names}
    return PointOut(step=point.step, time=point.time, values=values)


def span_of(first: int | None, last: int | None) -> Span:
    if first is not None and last is not None and first > last:
        raise refuse_field(
            "query.last_step",
            f"No step is at least {first} and at most {last}. Swap the two, or leave "
            "one out.",
        )
    return Span(first or 0, LARGEST_STEP if last is None else last)


class EvaluationOut(Schema):
    step: int = Field(examples=[50])
    name: str = Field(description="Of the held-out set.", examples=["held_out"])
    time: datetime
    metrics: dict[str, Real] = Field(examples=[{"eval/held_out/mean": 0.4}])


@router.get(
    "/{run_id}/evaluations", response=Page[EvaluationOut], summary="List evaluations"
)
def evaluations(
    request: HttpRequest, run_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """On held-out sets, as they were made; without those that a resume went behind."""
    run = get_run(access_of(request).team, run_id)
    found = Evaluation.objects.filter(run=run, superseded_by=None)
    read = partial(fill, EvaluationOut)
    return page_by(found, read, cursor=cursor, limit=limit, key="pk")


@router.get("/{run_id}/files/{file}", response=FILE, summary="Take a run as a file")
def run_file(
    request: HttpRequest,
    run_id: Id,
    file: FileName,
    first_step: StepBound,
    last_step: StepBound,
) -> HttpResponseBase:
    """Metrics or completions as CSV, JSON lines or Parquet; or for other tools."""
    run = get_run(access_of(request).team, run_id)
    return send_file(run, span_of(first_step, last_step), file)
