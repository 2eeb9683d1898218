"""Metrics, evaluations, logs, system metrics and token values of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
from django.http import Http404
from django.http.response import HttpResponseBase
from ninja import Query, Router, Schema
from pydantic import Field

from cohort.lines import plain
from dashboard.analysis.mismatch.advice import read_lab
from dashboard.api.auth import READ, ApiRequest
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.schemas import (
    FILE,
    LARGEST_STEP,
    Cursor,
    Id,
    Limit,
    Page,
    Real,
    Step,
    StepBound,
    fill,
    page_by,
    query_of,
    read_cursor,
    write_cursor,
)
from dashboard.completions.groups import get_group
from dashboard.completions.tokens import read_tokens, which_are_kept
from dashboard.project.errors import or_404
from dashboard.runs.charts.chart import LARGEST
from dashboard.runs.charts.series import (
    NONE,
    POINTS_PER_BUCKET,
    Series,
    find_bounds,
    make_buckets,
    read_evaluated,
    read_thinned,
)
from dashboard.runs.config.snapshot import WRITERS
from dashboard.runs.models import Evaluation, Run
from dashboard.runs.models import Step as StepRow
from dashboard.runs.queries import get_run, settings_of
from dashboard.supervision import system_samples
from dashboard.supervision.log_reading import read_part
from dashboard.supervision.log_search import Source, find_source, pieces_of
from dashboard.supervision.system_samples import Window, as_columns
from dashboard.transfers.export_runs import (
    FileName,
    metric_names,
    read_points,
    send_file,
)
from dashboard.transfers.export_tables import Span
from dashboard.web.downloads import attach
from trainer.metric_names import better_of, find_metric, group_of, title_of

router = Router(tags=["Metrics"], auth=READ)
logs_router = Router(tags=["Logs"], auth=READ)
traces_router = Router(tags=["Runs"], auth=READ)
MAX_POINTS = 10_000
MAX_THINNED = 1_000  # of a metric
Byte = Annotated[int | None, Query(None, ge=0, le=10**15)]
Moment = Annotated[float | None, Query(None, ge=0, le=10**12)]


class PointOut(Schema):
    step: int = Field(examples=[3])
    time: datetime
    values: dict[str, float] = Field(examples=[{"reward/mean": 0.31, "kl/mean": 0.002}])


class MetricOut(Schema):
    """From the metric registry; the title of an unknown metric is its name."""

    name: str = Field(examples=["kl/mean"])
    title: str = Field(examples=["KL to reference"])
    unit: str = Field(examples=["nats per token"])
    meaning: str = Field(examples=["KL between policy and reference."])
    better: Literal["higher", "lower"] | None
    group: str = Field(examples=["Policy"])

    @classmethod
    def of(cls, name: str) -> MetricOut:
        metric = find_metric(name)
        return cls(
            name=name,
            title=title_of(name),
            unit=metric.unit if metric else "",
            meaning=metric.about if metric else "",
            better=better_of(name),
            group=group_of(name),
        )


class ThinnedOut(Schema):
    """Last, lowest and highest value of a metric in intervals of steps."""

    steps: list[int] = Field(description="Last step.", examples=[[64, 128]])
    values: list[float] = Field(examples=[[0.31, 0.4]])
    low: list[float] = Field(examples=[[0.1, 0.28]])
    high: list[float] = Field(examples=[[0.35, 0.42]])
    width: int = Field(description="Steps of an interval.", examples=[64])


class MetricsOut(Schema):
    run_id: int
    names: list[str] = Field(examples=[["reward/mean", "kl/mean"]])
    metrics: list[MetricOut] = Field(description="Metric descriptions.")
    points: list[PointOut] = Field(description="Empty with `points`.")
    series: dict[str, ThinnedOut] = Field(
        default={}, description="With `points`: the thinned metrics."
    )
    next_cursor: str | None
    last_step: int = Field(description="Last step of the run.")


@router.get("/{run_id}/metrics", response=MetricsOut, summary="Read metrics")
def metrics(
    request: ApiRequest,
    run_id: Id,
    cursor: Cursor,
    first_step: StepBound,
    last_step: StepBound,
    names: Annotated[
        str,
        Query(
            "",
            max_length=20_000,
            description="Separated by commas. Default: all.",
            examples=["reward/mean,kl/mean"],
        ),
    ],
    limit: Annotated[int, Query(1_000, ge=1, le=MAX_POINTS)],
    points: Annotated[
        int | None,
        Query(
            None,
            ge=2,
            le=MAX_THINNED,
            description="Thin each metric to so many intervals, in `series`.",
        ),
    ],
) -> MetricsOut:
    """Return all points in step order; held-out scores included.

    With `points`, return the lowest and highest value of intervals of steps, so spikes
    stay.

    NaN and infinite values are missing.
    """
    run = get_run(request.auth.team, run_id)
    offered = metric_names(run)
    chosen = [name for name in names.split(",") if name] or offered
    if unknown := [name for name in chosen if name not in offered]:
        raise refuse_field(
            "query.names",
            f"The run has no metric {unknown[0][:80]!r}.",
            code="metrics.unknown",
        )
    span = span_of(first_step, last_step)
    if cursor:
        span = Span(max(span.first, read_cursor(cursor) + 1), span.last)
    if points is not None:
        return MetricsOut(
            run_id=run.pk,
            names=chosen,
            metrics=[MetricOut.of(name) for name in chosen],
            points=[],
            series=thin_metrics(run, chosen, span, points),
            next_cursor=None,
            last_step=run.last_step,
        )
    rows = list(islice(read_points(run, span), limit + 1))
    columns = set(chosen)
    return MetricsOut(
        run_id=run.pk,
        names=chosen,
        metrics=[MetricOut.of(name) for name in chosen],
        points=[
            PointOut(
                step=point.step,
                time=point.time,
                values={n: v for n, v in point.values.items() if n in columns},
            )
            for point in rows[:limit]
        ],
        next_cursor=write_cursor(rows[limit - 1].step) if rows[limit:] else None,
        last_step=run.last_step,
    )


def thin_metrics(
    run: Run, names: Sequence[str], span: Span, num: int
) -> dict[str, ThinnedOut]:
    """Thin metrics of steps and held-out scores to at most `num` intervals."""
    evaluated = read_evaluated([run], names, within=(span.first, span.last))[run.pk]
    steps = StepRow.objects.filter(run=run, superseded_by=None)
    bounds = find_bounds(steps, span.first, span.last)
    measured: dict[str, Series] = {}
    if bounds is not None:
        # Its extremes are kept, so it can be thinned again.
        buckets = make_buckets(*bounds, POINTS_PER_BUCKET * num)
        measured = read_thinned([run], names, {run.pk: buckets})[run.pk].metrics
    return {
        name: _thin(evaluated.get(name) or measured.get(name, NONE), num)
        for name in names
    }


def _thin(series: Series, num: int) -> ThinnedOut:
    width = 1
    while len(np.unique(series.steps // width)) > num:
        width *= 2
    _, first = np.unique(series.steps // width, return_index=True)
    last = np.append(first[1:], len(series)) - 1 if len(series) else first
    values = np.clip(series.values, -LARGEST, LARGEST)
    return ThinnedOut(
        steps=series.steps[last].tolist(),
        values=values[last].tolist(),
        low=np.minimum.reduceat(values, first).tolist() if len(series) else [],
        high=np.maximum.reduceat(values, first).tolist() if len(series) else [],
        width=width,
    )


def span_of(first: int | None, last: int | None) -> Span:
    if first is not None and last is not None and first > last:
        raise refuse_field(
            "query.last_step",
            f"The step range {first} to {last} is empty. Swap the values or omit one.",
            code="empty_range",
        )
    return Span(first or 0, LARGEST_STEP if last is None else last)


class EvaluationOut(Schema):
    step: int = Field(examples=[50])
    name: str = Field(description="Name of the held-out set.", examples=["held_out"])
    time: datetime
    metrics: dict[str, Real] = Field(examples=[{"eval/held_out/mean": 0.4}])


@router.get(
    "/{run_id}/evaluations", response=Page[EvaluationOut], summary="List evaluations"
)
def evaluations(
    request: ApiRequest, run_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """List evaluations on held-out sets, in order of time, without superseded ones."""
    run = get_run(request.auth.team, run_id)
    evaluations_ = Evaluation.objects.filter(run=run, superseded_by=None)
    read = partial(fill, EvaluationOut)
    return page_by(evaluations_, read, cursor=cursor, limit=limit, key="pk")


@router.get("/{run_id}/files/{file}", response=FILE, summary="Export a run")
def run_file(
    request: ApiRequest,
    run_id: Id,
    file: FileName,
    first_step: StepBound,
    last_step: StepBound,
) -> HttpResponseBase:
    """Metrics or completions as CSV, JSON Lines or Parquet, or for other tools.

    `pass-rates.jsonl` has each prompt's, for a curriculum."""
    run = get_run(request.auth.team, run_id)
    return send_file(run, span_of(first_step, last_step), file)


# Logs.


class Which(Schema):
    source: str = Field(
        "",
        pattern=r"^(trainer|supervisor|rank-[0-9]{1,5})?$",
        description="`trainer` or `supervisor`; `rank-3`: that process of a run on a "
        "cluster. Empty: the trainer's, or the supervisor's if the attempt ended "
        "before the trainer printed anything.",
    )
    attempt: Annotated[
        int | None,
        Query(
            None, ge=0, le=LARGEST_STEP, description="Attempt number; null: the last."
        ),
    ]


def _source(run: Run, which: Which) -> Source:
    log_source = find_source(run, query_of(which.model_dump()))
    source = or_404(log_source, f"{run} has no logs yet: no worker has started it.")
    if which.attempt is not None and source.attempt.number != which.attempt:
        raise Http404(f"{run} has no attempt {which.attempt}.")
    if which.source and source.name != which.source:
        raise Http404(f"{run} has no log {which.source}.")
    return source


class LogLineOut(Schema):
    at: int = Field(description="Byte offset.", examples=[0])
    text: str = Field(examples=["step 1: reward 0.20"])
    num_chars: int = Field(description="More than in `text` if that is truncated.")
    time: float | None = Field(
        default=None,
        description="Seconds since 1970; null: unknown.",
        examples=[1_772_366_400.5],
    )


class LogOut(Schema):
    source: str = Field(examples=["trainer"])
    attempt: int = Field(examples=[1])
    number: int = Field(description="Number of the first line, from 1.", examples=[1])
    first: int = Field(
        description="Offset of the first line; send it as `before` for earlier lines."
    )
    next: int = Field(
        description="Byte offset after the last line; send it as `after` to continue."
    )
    is_end: bool = Field(description="True: the log has no further lines yet.")
    is_closed: bool = Field(description="True: the attempt has ended.")
    size: int = Field(description="Size of the log in bytes.")
    missing: str = Field(description="Why the log is missing; empty if it is not.")
    lines: list[LogLineOut]


@logs_router.get("/{run_id}/log", response=LogOut, summary="Read a run's log")
def run_log(
    request: ApiRequest,
    run_id: Id,
    which: Query[Which],
    after: Byte,
    before: Byte,
    line: Annotated[int | None, Query(None, ge=1, le=10**12)],
) -> LogOut:
    """Up to 500 lines: the last, after or before a byte offset, or around a line."""
    source = _source(get_run(request.auth.team, run_id), which)
    part = read_part(source.path, after=after, before=before, line=line)
    fields: dict[str, Any] = asdict(part)
    fields.pop("mark")
    for entry, time in zip(fields["lines"], source.times_of(part.lines), strict=True):
        entry["time"] = time
    return LogOut(
        **fields,
        source=source.name,
        attempt=source.attempt.number,
        is_closed=source.attempt.ended_at is not None,
        missing=source.missing,
    )


@logs_router.get("/{run_id}/log/file", response=FILE, summary="Download a run's log")
def run_log_file(
    request: ApiRequest, run_id: Id, which: Query[Which]
) -> HttpResponseBase:
    """Return the log of one attempt."""
    run = get_run(request.auth.team, run_id)
    source = _source(run, which)
    if not source.path.is_file():
        raise Problem(404, source.missing)
    return attach(
        pieces_of(source),
        filename=f"run-{run.pk}-attempt-{source.attempt.number}-{source.name}.log",
        content_type="text/plain; charset=utf-8",
    )


# System metrics, token values, settings.


class SystemOut(Schema):
    attempt: list[int] = Field(examples=[[1, 1]])
    time: list[float] = Field(description="Seconds since 1970.")
    step: list[int] = Field(examples=[[3, 4]])
    values: dict[str, list[Real]] = Field(
        description="cpu and gpu_use/0 in percent; memory, disk_free and gpu_memory/0 "
        "in bytes; disk_read, network_sent etc. in bytes per second.",
        examples=[{"cpu": [41.0, 40.2]}],
    )


@traces_router.get(
    "/{run_id}/system", response=SystemOut, summary="Read system metrics"
)
def run_system(
    request: ApiRequest,
    run_id: Id,
    x: Annotated[Literal["time", "step"], Query("time")],
    first: Moment,
    last: Moment,
    after: Moment,
) -> SystemOut:
    """About 500 points between two times or steps; with `after`, newer points only."""
    run = get_run(request.auth.team, run_id)
    window = Window(axis=x, first=first, last=last)
    return SystemOut(
        **as_columns(system_samples.read_points(run.pk, window, after=after))
    )


class GroupTokensOut(Schema):
    completions: list[dict[str, Any]] = Field(
        description="By token: text, log-prob, ratio, KL, advantage and gradient "
        "coefficient, as far as stored."
    )


@traces_router.get(
    "/{run_id}/groups/{step}/{prompt_index}/tokens",
    response=GroupTokensOut,
    summary="Read token values",
)
def group_tokens(
    request: ApiRequest, run_id: Id, step: Step, prompt_index: Step
) -> GroupTokensOut:
    """Return the tokens of a group; 404 says which groups have token values."""
    run = get_run(request.auth.team, run_id)
    completions = read_tokens(get_group(run, step, prompt_index))
    return GroupTokensOut(completions=plain(or_404(completions, which_are_kept(run))))


class MismatchOut(Schema):
    step: int = Field(description="The measured step that is compared.", examples=[40])
    advice: str = Field(
        description="`few`, `incomparable`, `rounding`, `format`, `fault`, `rare`, "
        "`sequence`, `stale` or `token`: the rule that applies.",
        examples=["rounding"],
    )
    verdict: str = Field(examples=["No correction needed: the gap is rounding."])
    evidence: dict[str, Any] = Field(
        description="Numbers of the newest steps, or up to `step`, that rules compare."
    )
    series: dict[str, list[Real]] = Field(
        description="By measured step, 1,000 at most: `step`, `mean` of |d|, `p95_sum` "
        "of |Σd|, `kl` and `age`."
    )
    stored_step: int | None = Field(
        description="The step whose token values are compared; null: there is none."
    )
    corrections: list[dict[str, Any]] = Field(
        description="Of each correction shares, effective samples and gradient kept."
    )


@traces_router.get(
    "/{run_id}/mismatch",
    response=MismatchOut,
    summary="Compare sampler and trainer",
)
def run_mismatch(
    request: ApiRequest,
    run_id: Id,
    step: Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)],
) -> MismatchOut:
    """Return the gap between their log-probs, advice, and corrections at a step."""
    run = get_run(request.auth.team, run_id)
    lab = or_404(read_lab(run, step), f"{run} has not measured its sampler.")
    return MismatchOut(
        step=lab.step,
        advice=lab.advice.kind,
        verdict=lab.advice.verdict,
        evidence=plain(asdict(lab.evidence)),
        series={
            "step": lab.mismatch.steps.tolist(),
            "mean": plain(lab.totals.mean.values.tolist()),
            "p95_sum": plain(lab.totals.p95_sum.values.tolist()),
            "kl": plain(lab.totals.kl.values.tolist()),
            "age": plain(lab.mismatch.ages.tolist()),
        },
        stored_step=lab.stored_step,
        corrections=[plain(asdict(row)) for row in lab.rows],
    )


@traces_router.get(
    "/{run_id}/config.{suffix}",
    response=FILE,
    summary="Download a run's settings",
)
def run_config_file(
    request: ApiRequest, run_id: Id, suffix: Literal["toml", "json"]
) -> HttpResponseBase:
    """Return the settings as a file for `python -m trainer run`.

    Comments in TOML name the dataset versions.
    """
    run = get_run(request.auth.team, run_id)
    config = or_404(settings_of(run), f"{run} was imported and has no settings.")
    return attach(
        iter([WRITERS[suffix](run, config).encode()]),
        filename=f"{run.name}-{run.pk}.{suffix}",
        content_type="text/plain; charset=utf-8",
    )
