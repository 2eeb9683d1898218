"""Runs by the settings in which they differ, and what their outcome goes with."""

from __future__ import annotations

from typing import Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.analysis.compare.selection import read_selection
from dashboard.analysis.sweeps.importance import read_outcomes
from dashboard.analysis.sweeps.summary import Sweep, Weight, read_sweep
from dashboard.api.auth import READ, access_of
from dashboard.api.problems import refuse_field
from dashboard.api.resources.compare_curves import ChosenRuns, runs_query
from dashboard.api.schemas import Real, fill
from dashboard.pages.sweeps import MAX_SWEPT

router = Router(tags=["Sweeps"], auth=READ)


class SweptFilters(ChosenRuns):
    metric: str = Field("reward/mean", max_length=120)
    of: Literal["last", "tail", "highest", "lowest"] = Field(
        "last", description="tail: the mean of the last tenth of the steps."
    )
    without: list[str] = Field([], description="Settings that are left aside.")
    keep: list[str] = Field(
        [], description="Stretches of settings: `rollout.temperature:0.6..1`."
    )


class SweptSetting(Schema):
    key: str = Field(examples=["optim.learning_rate"])
    aliases: list[str] = Field(description="Settings that differ in the same runs.")
    values: list[str] = Field(examples=[["1e-6", "3e-6"]])


class SweptRun(Schema):
    run_id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-1"])
    outcome: Real = Field(examples=[0.71])
    values: dict[str, str] = Field(examples=[{"optim.learning_rate": "1e-6"}])
    is_kept: bool = Field(description="Within the stretches that are kept.")


class WeightOut(Schema):
    key: str | None = Field(description="null: all else.", examples=["optim.lr"])
    share: Real = Field(
        description="Of the variance between runs; below 0: less than chance would.",
        examples=[0.4],
    )
    low: Real = Field(examples=[0.1])
    high: Real = Field(examples=[0.6])


def _weight(weight: Weight) -> WeightOut:
    share = weight.share
    key = weight.setting.key if weight.setting else None
    return WeightOut(key=key, share=share.value, low=share.low, high=share.high)


class SweptOut(Schema):
    settings: list[SweptSetting]
    runs: list[SweptRun] = Field(description="The highest outcome first.")
    num_without: int = Field(description="Runs that have no outcome yet.")
    weights: list[WeightOut] = Field(description="The heaviest first, then all else.")
    not_weighed: str = Field(description="Why there are no weights.")
    together: list[list[str]] = Field(
        description="Settings that cannot be told apart, in pairs."
    )


@router.get("/sweep", response=SweptOut, summary="Weigh the settings of a sweep")
def weigh_sweep(request: HttpRequest, filters: Query[SweptFilters]) -> SweptOut:
    """Of a sweep, or of any runs: their settings, outcomes, and what weighs how much.

    Up to 200 runs.
    """
    team = access_of(request).team
    selection = read_selection(team, runs_query(filters), most=MAX_SWEPT)
    if not selection.runs or selection.is_cut:
        raise refuse_field(
            "query.runs", f"Name 1 to {MAX_SWEPT} runs; got {selection.num_chosen}."
        )
    found = read_sweep(
        selection.runs,
        read_outcomes(selection.runs, filters.metric, filters.of),
        title=filters.metric,
        without=filters.without,
        keep=filters.keep,
    )
    if found.problem:
        raise refuse_field("query.keep", found.problem)
    return _swept(found)


def _swept(found: Sweep) -> SweptOut:
    weighed = found.weighed
    weights = [*weighed.weights, *([weighed.rest] if weighed.rest else [])]
    keys = [setting.key for setting in found.settings]
    return SweptOut(
        settings=[fill(SweptSetting, one) for one in found.all_settings],
        runs=[
            SweptRun(
                run_id=line.run.pk,
                name=line.run.name,
                outcome=line.outcome,
                values=dict(zip(keys, line.values, strict=True)),
                is_kept=line.is_kept,
            )
            for line in found.lines
        ],
        num_without=found.num_without,
        weights=[_weight(weight) for weight in weights],
        not_weighed=weighed.problem,
        together=[list(pair) for pair in weighed.together],
    )
