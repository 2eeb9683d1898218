"""Sweeps: launch, list, and the importance of their settings."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db.models import Prefetch, QuerySet
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.analysis.compare.selection import read_selection
from dashboard.analysis.sweeps.importance import read_outcomes
from dashboard.analysis.sweeps.summary import MAX_SWEPT, ImportanceRow, read_sweep
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.compare import ChosenRuns, runs_query
from dashboard.api.launches import (
    LaunchIn,
    Value,
    checked_launch,
    read_launch,
    refuse_warnings,
)
from dashboard.api.problems import or_conflict, refuse_field
from dashboard.api.schemas import (
    Cursor,
    Input,
    Limit,
    Page,
    Person,
    Real,
    fill,
    page_by,
)
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch import launching
from dashboard.runs.launch.sweep import MAX_VALUES, NUM_ROWS, Row, SweepPlan
from dashboard.runs.models import Run, Sweep

router = Router(tags=["Sweeps"], auth=READ)
importance_router = Router(tags=["Sweeps"], auth=READ)


class SweepOut(Schema):
    id: int = Field(description="`sweep_id` of its runs.", examples=[3])
    name: str = Field(examples=["rates"])
    launched_by: Person | None
    launched_at: datetime
    run_ids: list[int] = Field(
        description="Its runs that are not in the trash.", examples=[[7, 8]]
    )


def _sweep(sweep: Sweep) -> SweepOut:
    return fill(
        SweepOut,
        sweep,
        launched_by=Person.of(sweep.launched_by),
        run_ids=[run.pk for run in sweep.runs.all()],
    )


def _sweeps(team: Team) -> QuerySet[Sweep]:
    sweeps_ = team.sweep_set.select_related("launched_by")
    runs = Run.objects.kept().only("sweep_id").order_by("pk")
    return sweeps_.prefetch_related(Prefetch("runs", runs))


@router.get("", response=Page[SweepOut], summary="List sweeps")
def sweeps(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first. `/compare/sweep` has the importance of their settings."""
    return page_by(_sweeps(request.auth.team), _sweep, cursor=cursor, limit=limit)


class ValuesIn(Input):
    setting: str = Field(max_length=200, examples=["optim.learning_rate"])
    values: list[Value] = Field(
        min_length=1,
        max_length=MAX_VALUES,
        description="At least two; for whole numbers also a range: `0..4`.",
        examples=[[1e-6, 3e-6]],
    )


class SweepIn(LaunchIn):
    sweep: list[ValuesIn] = Field(min_length=1, max_length=NUM_ROWS)
    mode: Literal["grid", "pairs"] = Field(
        default="grid",
        description="grid: every combination. pairs: first values together, then "
        "second values.",
    )


@router.post("", response={201: SweepOut}, auth=WRITE, summary="Launch a sweep")
def launch_sweep(request: ApiRequest, payload: SweepIn) -> Status[SweepOut]:
    """Queues all of its runs or none."""
    form = read_launch(request.auth.team, payload)
    refuse_warnings(checked_launch(form), payload)
    rows = [_row(values, index) for index, values in enumerate(payload.sweep)]
    planned = SweepPlan(rows=rows, mode=payload.mode)
    planned.plan(form)
    if planned.problem:
        raise refuse_field("body.sweep", planned.problem, planned.problem_code)
    with or_conflict():
        sweep = launching.launch_sweep(
            team=request.auth.team,
            user=request.auth.user,
            name=form.name,
            launches=[plan.launch for plan in planned.runs],
            cloned_from=form.start.run,
            fork_of=form.start.fork,
        )
    return Status(201, _sweep(_sweeps(request.auth.team).get(pk=sweep.pk)))


def _row(values: ValuesIn, index: int) -> Row:
    """Read as in the form: values separated by commas."""
    setting = all_fields().get(values.setting)
    at = f"body.sweep.{index}"
    if setting is None:
        message = f"Unknown setting {values.setting[:80]!r}."
        raise refuse_field(f"{at}.setting", message, "runs.unknown_setting")
    texts = []
    for value in values.values:
        is_switch = isinstance(value, bool) and setting.kind == "switch"
        text = ("on" if value else "off") if is_switch else setting.write(value)
        if not text.strip() or "," in text:
            message = f"A value cannot be empty or contain a comma; got {text[:40]!r}."
            raise refuse_field(f"{at}.values", message, "sweeps.bad_value")
        texts.append(text)
    return Row(path=values.setting, text=", ".join(texts))


# The settings in which runs differ, and their importance for the outcome.


class SweptFilters(ChosenRuns):
    metric: str = Field("reward/mean", max_length=120)
    of: Literal["last", "tail", "highest", "lowest"] = Field(
        "last", description="tail: mean of the last tenth of the steps."
    )
    without: list[str] = Field([], description="Settings to leave out.")
    keep: list[str] = Field(
        [], description="Ranges of settings: `rollout.temperature:0.6..1`."
    )


class SweptSetting(Schema):
    key: str = Field(examples=["optim.learning_rate"])
    aliases: list[str] = Field(description="Settings that change with it in all runs.")
    values: list[str] = Field(examples=[["1e-6", "3e-6"]])


class SweptRun(Schema):
    run_id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-1"])
    outcome: Real = Field(examples=[0.71])
    values: dict[str, str] = Field(examples=[{"optim.learning_rate": "1e-6"}])
    is_kept: bool = Field(description="Within the kept ranges.")


class WeightOut(Schema):
    key: str | None = Field(description="null: the residual.", examples=["optim.lr"])
    share: Real = Field(
        description="Share of the variance between runs; below 0: less than chance.",
        examples=[0.4],
    )
    low: Real = Field(examples=[0.1])
    high: Real = Field(examples=[0.6])


def _weight(weight: ImportanceRow) -> WeightOut:
    share = weight.share
    key = weight.setting.key if weight.setting else None
    return WeightOut(key=key, share=share.value, low=share.low, high=share.high)


class SweptOut(Schema):
    settings: list[SweptSetting]
    runs: list[SweptRun] = Field(description="Highest outcome first.")
    num_without: int = Field(description="Runs without an outcome yet.")
    weights: list[WeightOut] = Field(
        description="Most important first, then the residual."
    )
    not_weighed: str = Field(description="Why `weights` is empty.")
    together: list[list[str]] = Field(
        description="Pairs of settings that change together."
    )


@importance_router.get(
    "/sweep", response=SweptOut, summary="Get the importance of settings"
)
def weigh_sweep(request: ApiRequest, filters: Query[SweptFilters]) -> SweptOut:
    """Settings, outcomes and importance of the settings, for up to 200 runs."""
    selection = read_selection(request.auth.team, runs_query(filters), most=MAX_SWEPT)
    if not selection.runs or selection.is_cut:
        raise refuse_field(
            "query.runs",
            f"Choose 1 to {MAX_SWEPT} runs; got {selection.num_chosen}.",
            "sweeps.bad_runs",
        )
    summary_ = read_sweep(
        selection.runs,
        read_outcomes(selection.runs, filters.metric, filters.of),
        title=filters.metric,
        without=filters.without,
        keep=filters.keep,
    )
    if summary_.problem:
        raise refuse_field("query.keep", summary_.problem)
    weighed = summary_.weighed
    weights = [*weighed.weights, *([weighed.rest] if weighed.rest else [])]
    keys = [setting.key for setting in summary_.settings]
    return SweptOut(
        settings=[fill(SweptSetting, setting) for setting in summary_.all_settings],
        runs=[
            SweptRun(
                run_id=line.run.pk,
                name=line.run.name,
                outcome=line.outcome,
                values=dict(zip(keys, line.values, strict=True)),
                is_kept=line.is_kept,
            )
            for line in summary_.lines
        ],
        num_without=summary_.num_without,
        weights=[_weight(weight) for weight in weights],
        not_weighed=weighed.problem,
        together=[list(pair) for pair in weighed.together],
    )
