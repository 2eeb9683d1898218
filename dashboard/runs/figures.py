"""The overview's charts. Defined here, filled and coloured in the browser.

A trace says in `meta.terms` what it shows as a sum of metrics, [[metric, factor], …]
plus `meta.constant`; `meta.each` instead names a family of metrics (a regular
expression), one trace each, with `meta.band` inside its interval where one is known
(<metric>/low and /high). Colours are CSS variables, so a chart follows the theme.
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
# Lengths and shares of cut completions are no scores, and stand in the table below;
# of one completion the majority is itself, as pass@1 has it.
SCORES = r"^eval/{set}/(mean|pass@\d+|maj@(?!1$)\d+)$"
MAIN_SET = "heldout"
PHASES = ("generate", "score", "logprobs", "update", "sync")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    id: str
    title: str
    about: str  # one line under the title
    figure: dict[str, Any] | None  # None: there is nothing to draw, see `about`
    # Stays away until it has values: not every run measures it.
    is_optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    title: str
    charts: list[Chart]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What decides which charts a run has."""

    rules: tuple[str, ...]
    scheduled: tuple[str, ...]  # of the rules those whose weight moves
    eval_sets: tuple[str, ...]
    has_reference: bool
    has_dual_clip: bool
    has_penalty: bool  # for length
    samples_again: bool  # or drops groups
    is_stale: bool  # trains on what an older policy sampled


def overview_sections(config: RunConfig) -> list[Section]:
    return _sections(shape_of(config))


def shape_of(config: RunConfig) -> Shape:
    """All phases together: a chart is there if one of them fills it."""
    configs = [stage.config for stage in config.stages]
    rules = [rule for one in configs for rule in one.reward.recipe.rules]
    moving = [rule.name for rule in rules if rule.schedule]
    return Shape(
        rules=tuple(dict.fromkeys(rule.name for rule in rules)),
        scheduled=tuple(dict.fromkeys(moving)),
        eval_sets=_eval_sets(configs),
        has_reference=any(one.has_reference for one in configs),
        has_dual_clip=any(one.loss.dual_clip is not None for one in configs),
        has_penalty=any(one.reward.overlong_buffer_tokens > 0 for one in configs),
        samples_again=any(one.rollout.dynamic_sampling != "off" for one in configs),
        is_stale=any(
            one.rollout.source == "start"
            or one.rollout.one_step_off
            or one.optim.minibatches * one.optim.updates_per_batch > 1
            for one in configs
        ),
    )


def _eval_sets(configs: Sequence[RunConfig]) -> tuple[str, ...]:
    evaluated = [one for one in configs if one.evaluation.every_steps > 0]
    own = [MAIN_SET for one in evaluated if one.data.num_eval_rows > 0]
    further = [name for one in evaluated for name in one.evaluation.sets]
    return tuple(dict.fromkeys([*own, *further]))


# A figure takes milliseconds to validate, and most runs share these few shapes.
@lru_cache(maxsize=256)
def _sections(shape: Shape) -> list[Section]:
    sets = shape.eval_sets
    held_out = [_evaluation(f"eval/{name}/…", re.escape(name)) for name in sets]
    several = [Section(title="Held-out prompts", charts=held_out)]
    return [
        Section(title="Reward", charts=_reward(shape)),
        *(several if len(sets) > 1 else []),
        Section(title="Signal", charts=_signal()),
        Section(title="Policy", charts=_policy(shape)),
        Section(title="Completions", charts=_completions(shape)),
        Section(title="Speed", charts=_speed()),
    ]


def _reward(shape: Shape) -> list[Chart]:
    mean = [
        _edge("reward/mean", "reward/std", -1),
        _edge("reward/mean", "reward/std", 1),
        _line("reward/mean", color=1),
    ]
    by_rule = [
        _line(f"reward/{rule}/mean", name=rule, color=i)
        for i, rule in enumerate(shape.rules, start=1)
    ]
    if shape.has_penalty:
        color = len(by_rule) + 1
        by_rule.append(_line("reward/overlong/mean", name="overlong", color=color))
    charts = [
        _chart("reward/mean", "± reward/std over all completions", mean, y="reward"),
        _chart("reward/<rule>/mean", "Before weights", by_rule, y="score"),
    ]
    if shape.scheduled:
        charts.append(_weights(shape))
    if not shape.eval_sets:
        about = "This run has no held-out evaluation."
        charts.append(Chart(id="eval", title="eval/…", about=about, figure=None))
    elif len(shape.eval_sets) == 1:
        charts.append(_evaluation("eval/…", "[^/]+"))
    return charts


def _weights(shape: Shape) -> Chart:
    """In the colours of their rules. A schedule has no noise to smooth away."""
    lines = [
        _line(
            f"reward/{rule}/weight",
            name=rule,
            color=shape.rules.index(rule) + 1,
            smooth=False,
        )
        for rule in shape.scheduled
    ]
    # One line has no legend that names it.
    name = shape.scheduled[0] if len(lines) == 1 else "<rule>"
    return _chart(f"reward/{name}/weight", "As scheduled", lines, y="weight")


def _evaluation(title: str, name: str) -> Chart:
    each = go.Scatter(
        mode="lines+markers",
        marker={"size": 5},
        hovertemplate=_hover(""),
        meta={"each": SCORES.format(set=name), "smooth": False, "band": True},
    )
    about = "Held-out prompts; shaded: 95 % confidence"
    return _chart(title, about, [each], y="score")


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


def _policy(shape: Shape) -> list[Chart]:
    tail = [_line("kl/p99", color=4), _line("kl/max", color=2)]
    clip = [_line("clip/frac_low", color=2), _line("clip/frac_high", color=1)]
    if shape.has_dual_clip:
        clip.append(_line("clip/frac_dual", color=4))
    ratio = [_line("ratio/mean", color=1), _line("ratio/max", color=2)]
    weight = [_line("kl/coef", color=1, smooth=False)]
    kl = [
        _chart("kl/mean", "Distance to the reference", y="nats per token"),
        _chart("kl/p99, kl/max", "The farthest tokens", tail, y="nats per token"),
        _chart("kl/coef", "The KL weight, as it adapts", weight, y="weight", only=True),
    ]
    without = Chart(id="kl", title="kl/mean", about=NO_REFERENCE, figure=None)
    return [
        *(kl if shape.has_reference else [without]),
        _chart("advantage/abs_mean", "Size of the advantages", y="advantage"),
        _chart("entropy", "Of the policy's next token", y="nats per token"),
        _chart("clip/frac_…", "Tokens whose ratio is clipped", clip, y="share"),
        _chart("ratio/…", "New over old probability", ratio, y="ratio"),
        _chart("grad_norm", "Before clipping", y="norm"),
        _chart("loss", "Of the update", y="loss"),
        # A schedule has no noise to smooth away.
        _chart("lr", "As scheduled", [_line("lr", color=1, smooth=False)], y="rate"),
    ]


def _completions(shape: Shape) -> list[Chart]:
    gap = [_line("mismatch/mean", color=1), _line("mismatch/max", color=2)]
    weights = [_line("importance/mean", color=1)]
    masked = [_line("importance/frac_masked", color=2)]
    about_gap = "Log-probs as sampled against the trainer's"
    return [
        _chart("completion/mean_length", "Length of completions", y="tokens"),
        _chart("completion/frac_truncated", "Cut at the length limit", y="share"),
        *(_rounds() if shape.samples_again else []),
        *(_age() if shape.is_stale else []),
        _chart("mismatch/…", about_gap, gap, y="nats per token", only=True),
        _chart("importance/mean", "Correction of it", weights, y="weight", only=True),
        _chart(
            "importance/frac_masked", "Tokens it drops", masked, y="share", only=True
        ),
    ]


def _rounds() -> list[Chart]:
    return [
        _chart("sampling/num_rounds", "Rounds of dynamic sampling", y="rounds"),
        _chart("sampling/frac_dropped", "Groups left out of the batch", y="share"),
    ]


def _age() -> list[Chart]:
    age = [_line("staleness/mean", color=1, smooth=False)]
    moved = [_line("staleness/kl", color=1)]
    about = "What sampled against the policy before the update"
    return [
        _chart("staleness/mean", "Updates since sampling", age, y="updates"),
        _chart("staleness/kl", about, moved, y="nats per token", only=True),
    ]


def _speed() -> list[Chart]:
    phases = [
        _layer(phase, f"series-{i}", [[f"time/{phase}", 1]], unit=" s")
        for i, phase in enumerate(PHASES, start=1)
    ]
    beside = [
        _line(f"time/ahead_{phase}", color=i)
        for i, phase in enumerate(("generate", "score"), start=1)
    ]
    about = "The next step's sampling, beside the training"
    return [
        _chart("tokens_per_second", "Completion tokens", y="tokens per second"),
        _chart("time/…", "Where each step's time goes", phases, y="seconds"),
        _chart("time/ahead_…", about, beside, y="seconds", only=True),
    ]


def _chart(
    title: str,
    about: str,
    traces: Sequence[Any] = (),
    *,
    y: str,
    y_axis: dict[str, Any] | None = None,
    only: bool = False,  # when it has values
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
    return Chart(id=identity, title=title, about=about, figure=tree, is_optional=only)


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
