"""The page of a sweep: axes, runs and the importance of settings."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from django import forms

from dashboard.analysis.sweeps import figures
from dashboard.analysis.sweeps.axes import (
    OUTCOME,
    Axis,
    AxisRange,
    SweptSetting,
    confounded,
    design,
    in_ranges,
    read_ranges,
    swept_settings,
)
from dashboard.analysis.sweeps.importance import (
    KINDS,
    LAST,
    MAX_SETTINGS,
    Numbers,
    Share,
    weigh,
)
from dashboard.completions.forms import FilterForm
from dashboard.runs.models import REWARD, Run

MAX_SWEPT = 200  # runs of a sweep's page
MIN_AXES = 3  # settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A run in the table."""

    run: Run
    outcome: float | None
    values: list[str]
    is_kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportanceRow:
    setting: SweptSetting | None  # None: all else
    share: Share

    @property
    def percent(self) -> str:
        return f"{100 * max(self.share.value, 0):.0f}%"

    @property
    def interval(self) -> str:
        return f"{100 * self.share.low:.0f} to {100 * self.share.high:.0f}%"


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingImportance:
    """The settings by what they weigh, or why they are not weighed."""

    weights: list[ImportanceRow] = field(default_factory=list)
    rest: ImportanceRow | None = None
    num_runs: int = 0
    is_straight: bool = False
    problem: str = ""
    together: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSummary:
    settings: list[SweptSetting]  # of the chart and the fit
    all_settings: list[SweptSetting]
    lines: list[Line]  # the best outcome first
    num_kept: int
    num_without: int  # runs that have no outcome yet
    kept: list[AxisRange]
    problem: str
    weighed: SettingImportance
    axes: list[Axis]
    scattered: str  # the setting of the scatter
    figures: dict[str, Any]

    @property
    def shows_axes(self) -> bool:
        """With fewer settings, the outcome by setting shows it all."""
        return len(self.all_settings) >= MIN_AXES


def read_sweep(
    runs: Sequence[Run],
    outcomes: dict[int, float | None],
    *,
    title: str,
    x: str = "",
    without: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> SweepSummary:
    """`x`: the setting of the scatter; `without`: settings that are left aside."""
    every = swept_settings(runs)
    chosen = [setting for setting in every if setting.key not in without][:MAX_SETTINGS]
    values = np.array([outcomes[run.pk] for run in runs], dtype=np.float64)
    measured = np.isfinite(values)
    axes = [Axis.of(setting) for setting in chosen]
    if measured.any():
        axes.append(Axis(key=OUTCOME, positions=values))
    kept, problem = read_ranges(keep, axes)
    shown = in_ranges(axes, kept, len(runs))
    weighed = _measure_importance(
        runs, outcomes, {key for setting in chosen for key in setting.names}
    )
    # The setting that was asked for, else the one that weighs most.
    keys = [setting.key for setting in chosen]
    heaviest = [w.setting.key for w in weighed.weights if w.setting]
    scattered = next(iter([key for key in (x, *heaviest) if key in keys] or keys), "")
    return SweepSummary(
        settings=chosen,
        all_settings=every,
        lines=_lines(runs, outcomes, chosen, shown),
        num_kept=sum(shown),
        num_without=int((~measured).sum()),
        kept=kept,
        problem=problem,
        weighed=weighed,
        axes=axes,
        scattered=scattered,
        figures=_figures(
            runs, values, axes, shown, weighed, title=title, scattered=scattered
        ),
    )


def _lines(
    runs: Sequence[Run],
    outcomes: dict[int, float | None],
    settings: Sequence[SweptSetting],
    shown: Sequence[bool],
) -> list[Line]:
    # The best first.
    return sorted(
        [
            Line(
                run=run,
                outcome=outcomes[run.pk],
                values=[setting.texts[i] for setting in settings],
                is_kept=shown[i],
            )
            for i, run in enumerate(runs)
        ],
        key=lambda row: (row.outcome is None, -(row.outcome or 0)),
    )


def _measure_importance(
    runs: Sequence[Run], outcomes: dict[int, float | None], keys: Set[str]
) -> SettingImportance:
    """Use the runs that have an outcome, and the settings in which those differ."""
    measured = [run for run in runs if outcomes[run.pk] is not None]
    differing = swept_settings(measured) if measured else []
    settings = [axis for axis in differing if not keys.isdisjoint(axis.names)]
    if not settings:
        return SettingImportance(
            problem="These runs differ in none of the shown settings."
        )
    plan = design(settings, len(measured))
    if plan.problem:
        return SettingImportance(problem=plan.problem)
    outcome = np.array([outcomes[run.pk] for run in measured], dtype=np.float64)
    if np.ptp(outcome) == 0:
        return SettingImportance(
            problem="All runs have the same outcome, so no setting explains it."
        )
    weighed = weigh(plan.columns, outcome)
    weights = [
        ImportanceRow(setting=setting, share=share)
        for setting, share in zip(settings, weighed.shares, strict=True)
    ]
    return SettingImportance(
        weights=sorted(weights, key=lambda weight: -weight.share.value),
        rest=ImportanceRow(setting=None, share=weighed.rest),
        num_runs=weighed.num_runs,
        is_straight=plan.is_straight,
        together=confounded(settings),
    )


def _figures(
    runs: Sequence[Run],
    values: Numbers,
    axes: Sequence[Axis],
    shown: Sequence[bool],
    weighed: SettingImportance,
    *,
    title: str,
    scattered: str,
) -> dict[str, Any]:
    if len(axes) < 2 or not np.isfinite(values).any():
        return {}
    drawings = {"parallel": figures.parallel(runs, axes, shown)}
    drawings["scatter"] = figures.scatter(
        runs,
        next((axis for axis in axes if axis.key == scattered), axes[0]),
        values.tolist(),
        title=title,
    )
    if weighed.rest is not None:
        drawings["importance"] = figures.bars(
            [weight.setting.key for weight in weighed.weights if weight.setting],
            [weight.share for weight in (*weighed.weights, weighed.rest)],
        )
    return drawings


class SweepForm(FilterForm):
    """The choices held in the address. A bad value gives way to its default."""

    defaults: ClassVar[dict[str, Any]] = {"metric": REWARD, "of": LAST}

    metric = forms.CharField(required=False, max_length=120)
    of = forms.ChoiceField(required=False, choices=KINDS)
    # Of the scatter; empty: the setting that weighs most.
    x = forms.CharField(required=False, max_length=200)
