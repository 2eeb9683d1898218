"""The charts of a run. Defined here, filled and coloured in the browser.

The overview has four. The page Metrics has one of each metric, and those that show
several metrics together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go
from django.db import transaction
from django.http import QueryDict

from dashboard.accounts.models import Team, User
from dashboard.project.database import FixedQuery
from dashboard.runs.charts.chart import (
    Chart,
    ChartFeatures,
    chart,
    features_of,
    hover,
    line,
    reward_edge,
    share,
)
from dashboard.runs.models import ChartSettings, PinnedMetrics, Run
from dashboard.runs.queries import settings_of
from trainer.config import RunConfig
from trainer.metric_names import MAIN_SET, group_of, rank_of

LENGTH = "completion/mean_length"
NO_KL = "KL is not measured: the run has no reference."
NO_EVALUATION = "The run has no held-out evaluation."
# Lengths and shares of cut completions are no scores, and stand in the table below;
# of one completion the majority is itself, as pass@1 has it.
HELD_OUT_REWARD = "Held-out reward"
SCORES = r"^eval/{set}/(mean|pass@\d+|maj@(?!1$)\d+)$"
AXES = frozenset({"total/tokens", "total/completions"})  # beside step and time
# Measured of many prompts, scheduled or counted: there is no noise to smooth away.
STILL = r"^(eval|total)/|/weight$|^(lr|kl/coef|entropy/coef|staleness/mean)$"

X_AXES = ("step", "time", "tokens", "samples")
MAX_SMOOTHING = 0.99
# "all", charts by name, or both: all but these.
CHARTS = re.compile(r"(all|[\w-]{1,130})(,[\w-]{1,130})*", re.ASCII)
MAX_LENGTH = 1_000
MAX_PINNED = 12  # metrics of a team
MAX_NAME = 130


# A figure takes milliseconds to validate, and most runs share these few.
@lru_cache(maxsize=256)
def overview_charts(features: ChartFeatures) -> tuple[Chart, ...]:
    """Reward, held-out reward, outcome of groups, and KL or entropy.

    With a teacher, the distance to it comes first.
    """
    second = (
        _held_out_rewards(features)
        if features.eval_sets
        else chart(LENGTH, "Mean over the step's completions", y="tokens")
    )
    entropy = chart("entropy", "Of the policy's next token", y="nats per token")
    if features.distils:
        title = "Log-prob of the policy minus the teacher's, mean over tokens"
        distance = chart("distill/kl", title, y="nats per token")
        return distance, second, _reward(features), entropy
    last = (
        chart(
            "kl/mean",
            "Mean over all tokens"
            if features.has_reference
            else "Mean over a sample of the tokens",
            y="nats per token",
        )
        if features.has_reference or features.samples_kl
        else entropy
    )
    return _reward(features), second, _outcomes(), last


@lru_cache(maxsize=256)
def combined_charts(features: ChartFeatures) -> tuple[Chart, ...]:
    """List the charts of several metrics, on the page Metrics."""
    sets = features.eval_sets
    pattern = "[^/]+" if len(sets) == 1 else None
    by_rule = [
        line(f"reward/{rule}/mean", name=rule, color=i)
        for i, rule in enumerate(features.rules, start=1)
    ]
    if features.has_penalty:
        by_rule.append(
            line("reward/overlong/mean", name="overlong", color=len(by_rule) + 1)
        )
    return (
        _reward(features),
        chart(
            "reward/<rule>/mean",
            "Mean score, before weights",
            by_rule,
            title="Scores by rule",
            y="score",
        ),
        *([_weights(features)] if features.scheduled else []),
        _outcomes(),
        _clipped(features),
        chart(
            "mismatch/…",
            "Difference of engine and trainer log-probs",
            [line("mismatch/mean", color=1), line("mismatch/max", color=2)],
            title="Sampler mismatch",
            y="nats per token",
        ),
        *(_evaluation(name, pattern or re.escape(name)) for name in sets),
    )


def notes_of(features: ChartFeatures) -> dict[str, list[str]]:
    """Explain by group of metrics why a chart is not there."""
    is_measured = features.has_reference or features.samples_kl
    return {
        group_of("eval/heldout/mean"): [] if features.eval_sets else [NO_EVALUATION],
        group_of("kl/mean"): [] if is_measured else [NO_KL],
    }


def _reward(features: ChartFeatures) -> Chart:
    traces = [
        reward_edge(-1, features.limits),
        reward_edge(1, features.limits),
        line("reward/mean", color=1),
    ]
    percentiles = "10th to 90th percentile of completions"
    band = percentiles if features.has_percentiles else "± 1 standard deviation"
    return chart(
        "reward/mean", f"Mean; shaded: {band}", traces, title="Reward", y="reward"
    )


def _weights(features: ChartFeatures) -> Chart:
    """Draw weights in their rules' colours. A schedule has no noise to smooth away."""
    lines = [
        line(
            f"reward/{rule}/weight",
            name=rule,
            color=features.rules.index(rule) + 1,
            smooth=False,
        )
        for rule in features.scheduled
    ]
    # One line has no legend that names it.
    only = features.scheduled[0] if len(lines) == 1 else ""
    return chart(
        f"reward/{only or '<rule>'}/weight",
        "As scheduled",
        lines,
        title=f"Weight of {only}" if only else "Weights by rule",
        y="weight",
    )


def _held_out_rewards(features: ChartFeatures) -> Chart:
    """Draw the mean alone; several sets have a line each."""
    sets = features.eval_sets
    only = sets[0] if len(sets) == 1 else ""
    trace = go.Scatter(
        name="" if only else None,  # a single line needs no legend
        mode="lines+markers",
        marker={"size": 5},
        hovertemplate=hover(""),
        meta={
            "each": rf"^eval/{re.escape(only) or '[^/]+'}/mean$",
            "cut": "eval/",
            "end": "/mean",
            # Of a single set, what the hover says.
            **({"name": HELD_OUT_REWARD} if only else {}),
            "smooth": False,
            "band": True,
        },
    )
    return chart(
        f"eval/{only or '…'}/mean",
        "Shaded: 95% confidence interval",
        [trace],
        title=HELD_OUT_REWARD,
        y="reward",
    )


def _evaluation(name: str, pattern: str) -> Chart:
    """Draw a set's scores; the title names the set, so the legend need not."""
    trace = go.Scatter(
        mode="lines+markers",
        marker={"size": 5},
        hovertemplate=hover(""),
        meta={
            "each": SCORES.format(set=pattern),
            "cut": f"eval/{name}/",
            "smooth": False,
            "band": True,
        },
    )
    return chart(
        f"eval/{name}/…",
        "Held-out prompts; shaded: 95% confidence interval",
        [trace],
        title="Held-out scores" if name == MAIN_SET else f"Held-out scores: {name}",
        y="score",
    )


def _outcomes() -> Chart:
    constant, right, wrong = (
        f"group/frac_{name}" for name in ("zero_std", "all_max", "all_min")
    )
    shares = [
        share("▲ all correct", "right", [[right, 1]]),
        share("◆ mixed", "mixed", [[constant, -1]], constant=1),
        share("= tied or unscored", "tied", [[constant, 1], [right, -1], [wrong, -1]]),
        share("▼ all wrong", "wrong", [[wrong, 1]]),
    ]
    return chart(
        "group/frac_…",
        "Only mixed groups have a gradient",
        shares,
        title="Groups by outcome",
        y="share of groups",
        y_axis={"range": [0, 1], "tickformat": ".0%"},
    )


def _clipped(features: ChartFeatures) -> Chart:
    clip = [line("clip/frac_low", color=2), line("clip/frac_high", color=1)]
    if features.has_dual_clip:
        clip.append(line("clip/frac_dual", color=4))
    return chart(
        "clip/frac_…",
        "Tokens with a clipped policy ratio",
        clip,
        title="Clipped tokens",
        y="share",
    )


@lru_cache(maxsize=256)
def shown_metrics(features: ChartFeatures) -> frozenset[str]:
    """List metrics that the overview needs at first; evaluations come besides."""
    return AXES.union(*map(metrics_of, overview_charts(features)))


def metrics_of(chart: Chart) -> set[str]:
    metas = [trace["meta"] for trace in chart.figure["data"]]
    return {
        metric
        for terms in [
            meta.get(part, []) for meta in metas for part in ("terms", "otherwise")
        ]
        for metric, _ in terms
    }


def is_measured(chart: Chart, names: Iterable[str]) -> bool:
    """Tell whether one of these metrics is drawn in it."""
    names_drawn = [trace["meta"].get("each") for trace in chart.figure["data"]]
    terms = metrics_of(chart)
    return any(
        name in terms
        or any(family and re.search(family, name) for family in names_drawn)
        for name in names
    )


def group_of_chart(chart: Chart) -> str:
    """Find the group of its metrics, in the order of the registry."""
    names = metrics_of(chart) or {chart.name.replace("…", "mean")}
    return group_of(min(names, key=rank_of))


@lru_cache(maxsize=1)
def metric_figure() -> dict[str, Any]:
    """Draw the chart of any one metric; the browser puts in which."""
    tree = chart("metric", "", [line("metric", color=1)], y="").figure
    tree["data"][0]["meta"] = {"each": "", "smooth": True, "still": STILL, "band": True}
    return tree


def features_of_run(run: Run, config: RunConfig | None = None) -> ChartFeatures:
    """`config`: its settings, where they have been read."""
    config = config or settings_of(run)
    features = features_of(config) if config else _features_of_import(run)
    has_percentiles = "reward/p10" in run.metric_names or not run.last_step
    return replace(features, has_percentiles=has_percentiles)


def is_filled(chart: Chart, run: Run) -> bool:
    """Tell whether a chart is shown; of an imported run, only one that has values."""
    return not run.is_imported or is_measured(chart, run.summary.get("last", ()))


def _features_of_import(run: Run) -> ChartFeatures:
    names = run.summary.get("last", ())
    scores = re.findall(r"^eval/([^/]+)/mean$", "\n".join(names), re.MULTILINE)
    return ChartFeatures(
        rules=tuple(rule["name"] for rule in run.config["reward"]["recipe"]["rules"]),
        scheduled=(),
        eval_sets=tuple(sorted(scores, key=lambda name: (name != MAIN_SET, name))),
        has_reference="kl/mean" in run.metric_names,
        samples_kl=False,
        distils="distill/kl" in names,
        has_dual_clip=False,
        has_penalty=False,
        limits=None,
    )


def read_settings(user: User) -> str:
    """Read how a user wants charts drawn, for all runs, as the end of an address.

    What an address itself says goes first. Empty when nothing is kept.
    """
    return _settings_of.first(user.pk) or ""


_settings_of = FixedQuery(
    lambda user: ChartSettings.objects.filter(user=user).values_list("query", flat=True)
)


def keep_settings(user: User, given: QueryDict) -> str:
    """Store settings and return them; ValueError when one means nothing."""
    query = urlencode({name: _check(name, given.get(name, "")) for name in given})
    if len(query) > MAX_LENGTH:
        raise ValueError(
            f"Chart settings may have {MAX_LENGTH:,} characters; got "
            f"{len(query):,}. Use the same settings for all charts."
        )
    if query:
        ChartSettings.objects.update_or_create(user=user, defaults={"query": query})
    else:
        ChartSettings.objects.filter(user=user).delete()
    return query


def pinned_metrics(team: Team) -> list[str]:
    """List the metrics that the team has pinned; one query."""
    pinned = PinnedMetrics.objects.filter(team=team)
    return pinned.values_list("names", flat=True).first() or []


@transaction.atomic
def pin_metric(team: Team, name: str, *, is_pinned: bool) -> list[str]:
    """Pin a metric, return all; ValueError if the name is none, or too many are."""
    if not 1 <= len(name) <= MAX_NAME:
        raise ValueError(
            f"A metric's name has 1 to {MAX_NAME} characters; got {len(name):,}."
        )
    PinnedMetrics.objects.get_or_create(team=team)
    pinned = PinnedMetrics.objects.select_for_update().get(team=team)
    others = [pinned_name for pinned_name in pinned.names if pinned_name != name]
    if is_pinned and len(others) >= MAX_PINNED:
        raise ValueError(
            f"{MAX_PINNED} metrics are pinned already. Unpin one of them first."
        )
    if not is_pinned:
        pinned.names = others
    elif name not in pinned.names:
        pinned.names = [*others, name]
    pinned.save(update_fields=["names"])
    return pinned.names


def _check(name: str, value: str) -> str:
    match name:
        case "smooth" if _is_smoothing(value):
            return value
        case "x" if value in X_AXES:
            return value
        case "log" | "clip" if not value or CHARTS.fullmatch(value):
            return value
        case "tails" | "alerts" if value in ("on", "off"):
            return value
    raise ValueError(f"Charts have no setting {name[:40]!r} of {value[:80]!r}.")


def _is_smoothing(value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= MAX_SMOOTHING
