"""Runs compared: curves of one metric, figures, and the settings that differ."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import QueryDict
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.analysis.compare.comparison import (
    BaselineComparison,
    Comparison,
    compare_runs,
)
from dashboard.analysis.compare.differences import compare_settings
from dashboard.analysis.compare.seeds import (
    Arrangement,
    ConfidenceBand,
    RunSet,
    arrange,
)
from dashboard.analysis.compare.selection import CompareForm, read_selection
from dashboard.analysis.compare.verdicts import compare_summaries
from dashboard.api.auth import READ, ApiRequest
from dashboard.api.problems import refuse_field
from dashboard.api.runs import RunOut
from dashboard.api.schemas import (
    LARGEST_ID,
    Real,
    StepBound,
    fill,
    query_of,
    refuse_errors,
)

router = Router(tags=["Compare"], auth=READ)
MAX_RUNS = 50
RUNS = "Comma-separated run IDs; the first is the baseline."


class ChosenRuns(Schema):
    runs: str = Field("", max_length=4_000, description=RUNS, examples=["7,8"])
    sweep_id: Annotated[
        int | None,
        Query(
            None,
            ge=1,
            le=LARGEST_ID,
            description="All runs of this sweep, in place of `runs`.",
        ),
    ]


def runs_query(chosen: ChosenRuns) -> QueryDict:
    return query_of({"runs": chosen.runs, "sweep": chosen.sweep_id})


class CurveFilters(ChosenRuns):
    metric: str = Field("reward/mean", max_length=120)
    x: Literal["step", "time", "tokens", "samples", "gpu_hours", "cost"] = Field(
        "step",
        description="time: minutes since the first step; tokens: completion tokens "
        "sampled; samples: completions sampled.",
    )
    smooth: Annotated[float | None, Query(None, ge=0, le=0.99)]
    by: str = Field(
        "seeds",
        max_length=200,
        description="How runs form sets: seeds (runs that differ only in their "
        "seed), none, or a setting such as optim.learning_rate.",
    )
    stat: Literal["mean", "iqm"] = Field(
        "mean",
        description="The statistic, with a 95% interval; iqm: interquartile mean.",
    )
    better: Literal["", "higher", "lower", "neither"] = Field(
        "", description="Empty: the metric's own direction."
    )
    window: StepBound
    paired: bool = Field(
        False, description="Pair runs by seed if both sets have the same seeds."
    )


class SeriesOut(Schema):
    run_id: int = Field(examples=[7])
    steps: list[int] = Field(examples=[[1, 2]])
    x: list[Real] = Field(examples=[[1.0, 2.0]])
    values: list[Real] = Field(examples=[[0.2, 0.3]])
    smoothed: list[Real] = Field(examples=[[0.2, 0.26]])


class BandOut(Schema):
    x: list[Real] = Field(examples=[[1.0, 2.0]])
    values: list[Real] = Field(examples=[[0.2, 0.3]])
    low: list[Real] = Field(
        description="Lower end of the interval; null for a single run."
    )
    high: list[Real]
    num: list[int] = Field(
        description="Number of runs with a value.", examples=[[3, 3]]
    )


class ContrastOut(Schema):
    kind: str = Field(examples=["better"])
    text: str = Field(examples=["better: +0.12 [0.04, 0.20]"])
    difference: Real
    low: Real
    high: Real
    is_paired: bool


class ComparedSetOut(Schema):
    label: str = Field(examples=["learning rate 1e-6"])
    run_ids: list[int] = Field(examples=[[7, 9]])
    num_found: int = Field(description="Runs in the set; at most 20 are in `run_ids`.")
    varied: list[str] = Field(
        description="Settings other than the seed in which its runs differ."
    )
    last: Real = Field(description="Mean of the runs' last values.", examples=[0.71])
    best: Real = Field(examples=[0.74])
    window_mean: Real = Field(examples=[0.7])
    window_low: Real
    window_high: Real
    verdict: ContrastOut | None = Field(description="null: the baseline.")
    band: BandOut | None = Field(description="null if no set has several runs.")
    difference: BandOut | None = Field(description="Difference from the baseline.")


class CurvesOut(Schema):
    metric: str = Field(examples=["reward/mean"])
    better: str = Field(examples=["higher"])
    first_step: int | None = Field(description="First step of the window of the means.")
    last_step: int | None
    sets: list[ComparedSetOut] = Field(description="The first is the baseline.")
    num_sets: int = Field(description="Number of sets; at most 10 are in `sets`.")
    lines: list[SeriesOut] = Field(
        description="One line for each run, if no set has several runs. At most 1,000 "
        "points; spikes are kept."
    )
    without_axis: list[int] = Field(description="Runs without values on this axis.")


@router.get("/curves", response=CurvesOut, summary="Compare curves")
def compare_curves(request: ApiRequest, filters: Query[CurveFilters]) -> CurvesOut:
    """Return the curves of the Compare page, with differences and verdicts.

    Values beyond ±1e37 are clipped; `/runs/{run_id}/metrics` returns them unclipped.
    """
    selection = read_selection(request.auth.team, runs_query(filters))
    if not selection.runs:
        raise refuse_field(
            "query.runs",
            "Name at least one run, or a sweep that has runs.",
            code="compare.no_runs",
        )
    form = CompareForm.read(query_of(filters.model_dump(exclude={"runs", "sweep_id"})))
    refuse_errors(form)
    arrangement = arrange(selection.runs, form.value("by"))
    return _curves(arrangement, compare_runs(arrangement, form), form.value("metric"))


def _curves(arrangement: Arrangement, comparison: Comparison, metric: str) -> CurvesOut:
    num_sets = len(arrangement.sets)
    bands: list[ConfidenceBand | None] = [*comparison.curves.bands] or [None] * num_sets
    differences: list[ConfidenceBand | None] = [None, *comparison.curves.differences]
    return CurvesOut(
        metric=metric,
        better=comparison.better,
        first_step=comparison.window.first if comparison.window else None,
        last_step=comparison.window.last if comparison.window else None,
        sets=[
            _set(run_set, contrast, band, difference)
            for run_set, contrast, band, difference in zip(
                arrangement.sets,
                comparison.contrasts,
                bands,
                differences if comparison.curves.bands else [None] * num_sets,
                strict=True,
            )
        ],
        num_sets=arrangement.num_sets,
        lines=[
            fill(SeriesOut, series, run_id=run.pk)
            for run, series in zip(
                arrangement.runs, comparison.curves.lines, strict=False
            )
        ],
        without_axis=[run.pk for run in comparison.uncounted],
    )


def _set(
    run_set: RunSet,
    contrast: BaselineComparison,
    band: ConfidenceBand | None,
    difference: ConfidenceBand | None,
) -> ComparedSetOut:
    low, high = contrast.interval or (None, None)
    return fill(
        ComparedSetOut,
        run_set,
        run_ids=[run.pk for run in run_set.runs],
        last=contrast.last.value,
        best=contrast.best.value,
        window_mean=contrast.window.value,
        window_low=low,
        window_high=high,
        verdict=_verdict(contrast),
        band=_band(band) if band else None,
        difference=_band(difference) if difference else None,
    )


def _verdict(contrast: BaselineComparison) -> ContrastOut | None:
    if (verdict := contrast.verdict) is None:
        return None
    low, high = verdict.interval or (None, None)
    return fill(ContrastOut, verdict, low=low, high=high)


def _band(band: ConfidenceBand) -> BandOut:
    names = ("low", "high", "num")
    estimates = {name: getattr(band.estimate, name).tolist() for name in names}
    return BandOut(x=band.at.tolist(), values=band.estimate.value.tolist(), **estimates)


# Runs side by side.


class FigureOut(Schema):
    title: str = Field(examples=["Reward, best"])
    values: list[Real] = Field(description="One value for each run, in order.")


class SettingOut(Schema):
    key: str = Field(examples=["optim.learning_rate"])
    values: list[str | None] = Field(
        description="One value for each run, in order; null if a run lacks the "
        "setting.",
        examples=[["1e-6", "3e-6"]],
    )


class ComparisonOut(Schema):
    runs: list[RunOut]
    figures: list[FigureOut]
    settings: list[SettingOut] = Field(description="Settings that differ.")


@router.get("", response=ComparisonOut, summary="Compare runs")
def compare(
    request: ApiRequest,
    runs: Annotated[
        str,
        Query(
            ...,
            min_length=1,
            max_length=2_000,
            description="Comma-separated run IDs, at most 50.",
            examples=["7,8"],
        ),
    ],
) -> ComparisonOut:
    """Last and best reward, held-out scores, and the settings that differ.

    Values beyond ±1e37 are clipped.
    """
    query = QueryDict(mutable=True)
    query["runs"] = runs
    selection = read_selection(request.auth.team, query, most=MAX_RUNS)
    if selection.is_cut or not selection.runs:
        raise refuse_field(
            "query.runs",
            f"Name 1 to {MAX_RUNS} runs; got {selection.num_chosen}.",
            code="compare.num_runs",
        )
    chosen = selection.runs
    columns = compare_summaries(chosen, [[place] for place in range(len(chosen))])
    return ComparisonOut(
        runs=[RunOut.of(run) for run in chosen],
        figures=[
            FigureOut(title=c.title, values=[f.value for f in c.figures])
            for c in columns
        ],
        settings=[
            SettingOut(key=setting.key, values=setting.values)
            for setting in compare_settings(chosen)
            if setting.differs
        ],
    )
