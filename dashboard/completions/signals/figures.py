"""The signal charts. Defined here, filled and coloured in the browser.

Each is filled by static/js/charts/signals/ with what run_signals answers of its
`source`. Colours are CSS variables, so a chart follows the theme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import plotly.graph_objects as go
from django import forms

from dashboard.completions.forms import FilterForm
from dashboard.completions.signals.pass_at_k import read_passes
from dashboard.completions.signals.records import PHASES
from dashboard.completions.signals.rule_shares import read_rule_shares
from dashboard.completions.signals.signal_map import (
    ENVIRONMENT,
    ORDERS,
    OTHER,
    read_distribution,
    read_map,
    read_step_timing,
)
from dashboard.runs.charts.chart import figure_tree
from dashboard.runs.models import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalChart:
    id: str
    source: str
    title: str
    group: str  # of metrics, beside which it is shown
    term: str  # that ⓘ explains: a metric, a family of metrics or a glossary entry
    about: str  # one line under the title
    figure: dict[str, Any]
    is_wide: bool = False


@cache
def signal_charts(*, has_environment: bool = False) -> tuple[SignalChart, ...]:
    return (
        SignalChart(
            id="map",
            source="map",
            title="Signal map",
            group="Signal within groups",
            term="signal",
            about="One cell per group; darker: rewards differ more. Top: completions "
            "of mixed groups",
            figure=_map(),
            is_wide=True,
        ),
        SignalChart(
            id="rewards",
            source="rewards",
            title="Reward distribution",
            group="Reward",
            term="reward",
            about="Share of completions by reward. Lines, for more than two rewards: "
            "5%, median, 95%",
            figure=_distribution("reward", "var(--cohort-series-1)"),
        ),
        SignalChart(
            id="advantages",
            source="advantages",
            title="Advantage distribution",
            group="Signal within groups",
            term="advantage",
            about="Share of the batch by advantage. Lines: 5%, median, 95%",
            figure=_distribution("advantage", "var(--cohort-series-4)"),
        ),
        SignalChart(
            id="mean",
            source="rules",
            title="Mean reward by rule",
            group="Reward",
            term="rule",
            about="Contribution of each rule / sum of absolute contributions",
            figure=_rules(),
        ),
        SignalChart(
            id="variance",
            source="rules",
            title="Reward share by rule",
            group="Reward",
            term="signal",
            about="Share of reward variance within groups, by rule",
            figure=_rules(),
        ),
        SignalChart(
            id="passes",
            source="passes",
            title="pass@k and maj@k",
            group="Held-out prompts",
            term="pass@k",
            about="pass@k: share of prompts with a correct completion of k. "
            "maj@k: share with a correct majority. Dotted: held-out",
            figure=_passes(),
            is_wide=True,
        ),
        SignalChart(
            id="anatomy",
            source="anatomy",
            title="Step timing",
            group="Time",
            term="time/…",
            about="Time by phase; dashed: time spent on groups without signal",
            figure=_step_timing(has_environment),
            is_wide=True,
        ),
    )


def _map() -> dict[str, Any]:
    dead = ("right", "wrong", "tied")
    scale = [
        [end / len(dead), f"var(--cohort-{name})"]
        for index, name in enumerate(dead)
        for end in (index, index + 1)
    ]
    cells = {"showscale": False, "hoverongaps": False, "xgap": 0.5, "ygap": 0.5}
    hover = "%{hovertext}<extra></extra>"
    return _figure(
        [
            go.Bar(
                name="effective batch",
                marker={"color": "var(--cohort-mixed)", "line": {"width": 0}},
                yaxis="y2",
                hovertemplate=hover,
            ),
            go.Heatmap(
                name="dead",
                colorscale=scale,
                zmin=0,
                zmax=len(dead),
                hovertemplate=hover,
                **cells,
            ),
            go.Heatmap(
                name="mixed",
                colorscale=[
                    [0, "var(--cohort-mixed-soft)"],
                    [1, "var(--cohort-mixed)"],
                ],
                zmin=0,
                hovertemplate=hover,
                **cells,
            ),
        ],
        y="prompt",
        hovermode="closest",
        showlegend=False,
        bargap=0,
        yaxis={"domain": [0, 0.8], "autorange": "reversed", "showgrid": False},
        yaxis2={
            "title": {"text": "effective"},
            "domain": [0.86, 1],
            "rangemode": "tozero",
            "nticks": 3,
            "fixedrange": True,
        },
    )


def _distribution(what: str, color: str) -> dict[str, Any]:
    line = {"color": "var(--cohort-text)", "shape": "hvh"}
    quantiles = [
        go.Scatter(
            name=name,
            mode="lines",
            line={**line, "width": width, "dash": dash},
            hoverinfo="skip",
            meta={"quantile": quantile},
        )
        for name, quantile, width, dash in (
            ("5%", 5, 1, "dot"),
            ("median", 50, 1.5, "solid"),
            ("95%", 95, 1, "dot"),
        )
    ]
    counts = go.Heatmap(
        name="completions",
        colorscale=[[0, "var(--cohort-surface)"], [1, color]],
        zmin=0,
        zmax=1,
        showscale=False,
        hoverongaps=False,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return _figure([counts, *quantiles], y=what, hovermode="closest", showlegend=False)


def _rules() -> dict[str, Any]:
    rule = go.Bar(marker={"line": {"width": 0}}, hovertemplate="%{customdata}")
    return _figure(
        [rule],
        y="share",
        barmode="relative",
        bargap=0,
        hovermode="x unified",
        showlegend=True,
        yaxis={"tickformat": ".0%"},
    )


def _passes() -> dict[str, Any]:
    """pass@1, pass@k and maj@k; what is held out has the colour of its score."""
    lines = [
        go.Scatter(
            mode="lines",
            line={"color": f"var(--cohort-series-{color})", "width": 2, "dash": dash},
            hovertemplate="%{customdata}",
        )
        for color, dash in ((1, "solid"), (3, "dash"), (2, "dashdot"))
    ]
    return _figure(
        lines,
        y="share of groups",
        hovermode="x unified",
        showlegend=True,
        yaxis={"tickformat": ".0%", "range": [0, 1]},
    )


def _step_timing(has_environment: bool) -> dict[str, Any]:
    colors = [(phase, f"series-{i}") for i, phase in enumerate(PHASES, start=1)]
    colors[1:1] = [(ENVIRONMENT, "series-6")] if has_environment else []
    phases = [
        go.Bar(
            name=phase,
            marker={"color": f"var(--cohort-{color})", "line": {"width": 0}},
            hovertemplate="%{customdata}",
            meta={"phase": phase},
        )
        for phase, color in [*colors, (OTHER, "tied-soft")]
    ]
    dead = go.Scatter(
        name="without signal",
        mode="lines",
        line={
            "color": "var(--cohort-text)",
            "width": 2,
            "dash": "dash",
            "shape": "hvh",
        },
        hovertemplate="%{customdata}",
    )
    return _figure(
        [*phases, dead],
        y="seconds per step",
        barmode="stack",
        bargap=0,
        hovermode="x unified",
        showlegend=True,
    )


def _figure(data: list[Any], *, y: str, **layout: Any) -> dict[str, Any]:
    return figure_tree(
        data,
        xaxis={"title": {"text": ""}},
        yaxis={"title": {"text": y}, **layout.pop("yaxis", {})},
        **layout,
    )


class SignalForm(FilterForm):
    """The steps that the signal charts show, and the order of the map's rows."""

    defaults: ClassVar[dict[str, Any]] = {"rows": "difficulty"}

    rows = forms.ChoiceField(required=False, choices=ORDERS, label="Rows by")
    first_step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    last_step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)

    @property
    def steps(self) -> dict[str, int | None]:
        return {"first": self.value("first_step"), "last": self.value("last_step")}


Read = Callable[[Run, SignalForm], dict[str, Any]]
READERS: dict[str, Read] = {
    "map": lambda run, form: read_map(run, order=form.value("rows"), **form.steps),
    "rewards": lambda run, form: read_distribution(run, "reward", **form.steps),
    "advantages": lambda run, form: read_distribution(run, "advantage", **form.steps),
    "rules": lambda run, form: read_rule_shares(run, **form.steps),
    "passes": lambda run, form: read_passes(run, **form.steps),
    "anatomy": lambda run, form: read_step_timing(run, **form.steps),
}
