"""The overview's charts. Defined here, filled and coloured in the browser.

A trace says in `meta.terms` what it shows as a sum of metrics, [[metric, factor], …]
plus `meta.constant`; `meta.each` instead names a family of metrics (a regular
expression), one trace each. Colours are CSS variables, so a chart follows the theme.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from trainer.config import RunConfig

NO_REFERENCE = "No reference model: KL is not measured (the KL weight is 0)."
# Lengths and shares of cut completions are no scores, and stand in the table below.
SCORES = r"^eval/[^/]+/(mean|(pass|maj)@\d+)$"
PHASES = ("generate", "score", "logprobs", "update", "sync")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    id: str
    title: str
    about: str  # one line under the title
    figure: dict[str, Any] | None  # None: there is nothing to draw, see `about`


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    title: str
    charts: list[Chart]


def overview_sections(config: RunConfig) -> list[Section]:
    rules = tuple(rule.name for rule in config.reward.recipe.rules)
    has_reference = config.loss.kl_coef > 0 or config.reference.kind == "frozen"
    is_evaluated = config.evaluation.every_steps > 0 and config.data.num_eval_rows > 0
    return _sections(rules, has_reference, is_evaluated)


# A figure takes milliseconds to validate, and most runs share these few shapes.
@lru_cache(maxsize=256)
def _sections(
    rules: tuple[str, ...], has_reference: bool, is_evaluated: bool
) -> list[Section]:
    return [
        Section(title="Reward", charts=_reward(rules, is_evaluated)),
        Section(title="Signal", charts=_signal()),
        Section(title="Policy", charts=_policy(has_reference)),
        Section(title="Completions", charts=_completions()),
        Section(title="Speed", charts=_speed()),
    ]


def _reward(rules: Sequence[str], is_evaluated: bool) -> list[Chart]:
    mean = [
        _edge("reward/mean", "reward/std", -1),
        _edge("reward/mean", "reward/std", 1),
        _line("reward/mean", color=1),
    ]
    by_rule = [
        _line(f"reward/{rule}/mean", name=rule, color=i)
        for i, rule in enumerate(rules, start=1)
    ]
    return [
        _chart("reward/mean", "± reward/std over all completions", mean, y="reward"),
        _chart("reward/<rule>/mean", "Before weights", by_rule, y="score"),
        _evaluation(is_evaluated),
    ]


def _evaluation(is_evaluated: bool) -> Chart:
    if not is_evaluated:
        about = "This run has no held-out evaluation."
        return Chart(id="eval", title="eval/…", about=about, figure=None)
    each = go.Scatter(
        mode="lines+markers",
        marker={"size": 5},
        hovertemplate=_hover(""),
        meta={"each": SCORES, "smooth": False},
    )
    return _chart("eval/…", "Held-out prompts", [each], y="score")


def _signal() -> list[Chart]:
    constant, right, wrong = (
        f"group/frac_{name}" for name in ("zero_std", "all_max", "all_min")
    )
    shares = [
        _share("▲ all right", "right", [[right, 1]]),
        _share("◆ mixed", "mixed", [[constant, -1]], constant=1),
        _share("= tied, unscorable", "tied", [[constant, 1], [right, -1], [wrong, -1]]),
        _share("▼ all wrong", "wrong", [[wrong, 1]]),
    ]
    return [
        _chart(
            "group/frac_…",
            "Share of groups by signal; only mixed groups teach",
            shares,
            y="share of groups",
            y_axis={"range": [0, 1], "tickformat": ".0%"},
        ),
        _chart("group/std_mean", "Spread within a group", y="reward"),
        _chart("group/num_effective", "Groups with a signal", y="groups"),
    ]


def _policy(has_reference: bool) -> list[Chart]:
    tail = [_line("kl/p99", color=4), _line("kl/max", color=2)]
    clip = [_line("clip/frac_low", color=2), _line("clip/frac_high", color=1)]
    ratio = [_line("ratio/mean", color=1), _line("ratio/max", color=2)]
    kl = [
        _chart("kl/mean", "Distance to the reference", y="nats per token"),
        _chart("kl/p99, kl/max", "The farthest tokens", tail, y="nats per token"),
    ]
    without = Chart(id="kl", title="kl/mean", about=NO_REFERENCE, figure=None)
    return [
        *(kl if has_reference else [without]),
        _chart("advantage/abs_mean", "Size of the advantages", y="advantage"),
        _chart("entropy", "Of the policy's next token", y="nats per token"),
        _chart("clip/frac_…", "Tokens whose ratio is clipped", clip, y="share"),
        _chart("ratio/…", "New over old probability", ratio, y="ratio"),
        _chart("grad_norm", "Before clipping", y="norm"),
        _chart("loss", "Of the update", y="loss"),
        # A schedule has no noise to smooth away.
        _chart("lr", "As scheduled", [_line("lr", color=1, smooth=False)], y="rate"),
    ]


def _completions() -> list[Chart]:
    return [
        _chart("completion/mean_length", "Length of completions", y="tokens"),
        _chart("completion/frac_truncated", "Cut at the length limit", y="share"),
    ]


def _speed() -> list[Chart]:
    phases = [
        _layer(phase, f"series-{i}", [[f"time/{phase}", 1]], unit=" s")
        for i, phase in enumerate(PHASES, start=1)
    ]
    return [
        _chart("tokens_per_second", "Completion tokens", y="tokens per second"),
        _chart("time/…", "Where each step's time goes", phases, y="seconds"),
    ]


def _chart(
    title: str,
    about: str,
    traces: Sequence[Any] = (),
    *,
    y: str,
    y_axis: dict[str, Any] | None = None,
) -> Chart:
    figure = go.Figure(data=list(traces) or [_line(title, color=1)])
    data = [trace for trace in figure.data if trace.showlegend is not False]
    figure.update_layout(
        template=go.layout.Template(),  # an empty one: the page has its own colours
        title={"text": title},
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": y}, "exponentformat": "e", **(y_axis or {})},
        hovermode="x unified",
        showlegend=len(data) > 1 or data[0].name is None,
    )
    tree: dict[str, Any] = figure.to_plotly_json()
    del tree["layout"]["template"]
    identity = re.sub(r"\W+", "-", title).strip("-_")
    return Chart(id=identity, title=title, about=about, figure=tree)


def _hover(unit: str) -> str:
    return "%{y:.4~g}" + unit


def _line(
    metric: str, *, name: str | None = None, color: int, smooth: bool = True
) -> go.Scatter:
    return go.Scatter(
        name=name or metric,
        mode="lines",
        line={"color": f"var(--cohort-series-{(color - 1) % 10 + 1})", "width": 2},
        hovertemplate=_hover(""),
        meta={"terms": [[metric, 1]], "smooth": smooth},
    )


def _edge(metric: str, spread: str, side: int) -> go.Scatter:
    """One edge of a band; the upper one fills down to the lower."""
    return go.Scatter(
        name=f"{metric} {'+' if side > 0 else '-'} {spread}",
        mode="lines",
        line={"width": 0},
        fill="tonexty" if side > 0 else None,
        fillcolor="var(--cohort-series-1)",
        hoverinfo="skip",
        showlegend=False,
        meta={"terms": [[metric, 1], [spread, side]], "smooth": True, "alpha": 0.16},
    )


def _share(
    name: str, color: str, terms: list[list[Any]], *, constant: float = 0
) -> go.Scatter:
    share = _layer(name, color, terms, unit="", constant=constant)
    share.hovertemplate = "%{y:.1%}"
    return share


def _layer(
    name: str, color: str, terms: list[list[Any]], *, unit: str, constant: float = 0
) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="lines",
        stackgroup="one",
        line={"width": 0.5, "color": f"var(--cohort-{color})"},
        fillcolor=f"var(--cohort-{color})",
        hovertemplate=_hover(unit),
        meta={"terms": terms, "constant": constant, "smooth": True, "alpha": 0.75},
    )
