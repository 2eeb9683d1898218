"""The charts of a run. Defined here, filled and coloured in the browser.

The overview has about twelve; every metric has one on the page All metrics.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go
from django.http import QueryDict

from dashboard.accounts.models import User
from dashboard.runs.charts.chart import (
    Chart,
    ChartFeatures,
    chart,
    edge,
    features_of,
    hover,
    line,
    share,
)
from dashboard.runs.models import ChartSettings, Run
from trainer.config import RunConfig
from trainer.metric_names import MAIN_SET

NO_KL = "KL is not measured: the run has no reference."
NO_EVALUATION = "The run has no held-out evaluation."
# Lengths and shares of cut completions are no scores, and stand in the table below;
# of one completion the majority is itself, as pass@1 has it.
SCORES = r"^eval/{set}/(mean|pass@\d+|maj@(?!1$)\d+)$"
AXES = frozenset({"total/tokens", "total/completions"})  # beside step and time
# Measured of many prompts, scheduled or counted: there is no noise to smooth away.
STILL = r"^(eval|total)/|/weight$|^(lr|kl/coef|staleness/mean)$"

X_AXES = ("step", "time", "tokens", "samples")
MAX_SMOOTHING = 0.99
# "all", charts by name, or both: all but these.
CHARTS = re.compile(r"(all|[\w-]{1,130})(,[\w-]{1,130})*", re.ASCII)
MAX_LENGTH = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    title: str
    charts: list[Chart]
    notes: list[str] = field(default_factory=list)  # why a chart is not there


def overview_sections(config: RunConfig) -> list[Section]:
    return sections_by_features(features_of(config))


# A figure takes milliseconds to validate, and most runs share these few.
@lru_cache(maxsize=256)
def sections_by_features(features: ChartFeatures) -> list[Section]:
    sets = features.eval_sets
    held_out = [_evaluation(name, re.escape(name)) for name in sets]
    several = [Section(title="Held-out prompts", charts=held_out)]
    return [
        Section(
            title="Reward",
            charts=_reward(features),
            notes=[] if features.eval_sets else [NO_EVALUATION],
        ),
        *(several if len(sets) > 1 else []),
        Section(title="Signal", charts=_signal()),
        Section(
            title="Policy",
            charts=_policy(features),
            notes=[] if features.has_reference or features.samples_kl else [NO_KL],
        ),
        Section(title="Completions", charts=_completions(features)),
        Section(title="Speed", charts=_speed()),
    ]


def _reward(features: ChartFeatures) -> list[Chart]:
    mean = [
        edge("reward/mean", "reward/std", -1),
        edge("reward/mean", "reward/std", 1),
        line("reward/mean", color=1),
    ]
    by_rule = [
        line(f"reward/{rule}/mean", name=rule, color=i)
        for i, rule in enumerate(features.rules, start=1)
    ]
    if features.has_penalty:
        color = len(by_rule) + 1
        by_rule.append(line("reward/overlong/mean", name="overlong", color=color))
    charts = [
        chart(
            "reward/mean",
            "± 1 standard deviation over all completions",
            mean,
            y="reward",
        ),
        chart(
            "reward/<rule>/mean",
            "Mean score, before weights",
            by_rule,
            title="Scores by rule",
            y="score",
        ),
    ]
    if features.scheduled:
        charts.append(_weights(features))
    if len(features.eval_sets) == 1:
        charts.append(_evaluation(features.eval_sets[0], "[^/]+"))
    return charts


def _weights(features: ChartFeatures) -> Chart:
    """In the colours of their rules. A schedule has no noise to smooth away."""
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


def _evaluation(name: str, pattern: str) -> Chart:
    """The title names the set, so the legend need not with each line."""
    each = go.Scatter(
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
        "Held-out prompts; shaded: 95 % confidence interval",
        [each],
        title="Held-out scores" if name == MAIN_SET else f"Held-out scores: {name}",
        y="score",
    )


def _signal() -> list[Chart]:
    constant, right, wrong = (
        f"group/frac_{name}" for name in ("zero_std", "all_max", "all_min")
    )
    shares = [
        share("▲ all correct", "right", [[right, 1]]),
        share("◆ mixed", "mixed", [[constant, -1]], constant=1),
        share("= tied or unscored", "tied", [[constant, 1], [right, -1], [wrong, -1]]),
        share("▼ all wrong", "wrong", [[wrong, 1]]),
    ]
    return [
        chart(
            "group/frac_…",
            "Only mixed groups have a gradient",
            shares,
            title="Groups by outcome",
            y="share of groups",
            y_axis={"range": [0, 1], "tickformat": ".0%"},
        ),
        chart("group/std_mean", "Mean standard deviation of a group", y="reward"),
    ]


def _policy(features: ChartFeatures) -> list[Chart]:
    clip = [line("clip/frac_low", color=2), line("clip/frac_high", color=1)]
    if features.has_dual_clip:
        clip.append(line("clip/frac_dual", color=4))
    weight = [line("kl/coef", color=1, smooth=False)]
    about = (
        "Mean over the tokens"
        if features.has_reference
        else "To the initial model, mean of sampled tokens"
    )
    distance = chart("kl/mean", about, y="nats per token")
    coef = chart("kl/coef", "Set by the KL controller", weight, y="weight", only=True)
    return [
        *([distance] if features.has_reference or features.samples_kl else []),
        *([coef] if features.has_reference else []),
        chart("entropy", "Of the policy's next token", y="nats per token"),
        chart(
            "clip/frac_…",
            "Tokens with a clipped policy ratio",
            clip,
            title="Clipped tokens",
            y="share",
        ),
        chart("grad_norm", "Before clipping", y="norm"),
    ]


def _completions(features: ChartFeatures) -> list[Chart]:
    gap = [line("mismatch/mean", color=1), line("mismatch/max", color=2)]
    age = [line("staleness/mean", color=1, smooth=False)]
    about_gap = "Difference of engine and trainer log-probs"
    dropped = chart("sampling/frac_dropped", "Left out of the batch", y="share")
    stale = chart("staleness/mean", "Updates since sampling", age, y="updates")
    return [
        chart("completion/mean_length", "Mean over the step's completions", y="tokens"),
        chart("completion/frac_truncated", "Cut at the length limit", y="share"),
        *([dropped] if features.samples_again else []),
        *([stale] if features.is_stale else []),
        chart(
            "mismatch/…",
            about_gap,
            gap,
            title="Sampler mismatch",
            y="nats per token",
            only=True,
        ),
    ]


def _speed() -> list[Chart]:
    """What a step's time goes into, the signal charts show."""
    return [
        chart("tokens_per_second", "Completion tokens per step time", y="tokens/s"),
        chart("time/step", "From sampling to the update", y="seconds"),
    ]


def shown_metrics(config: RunConfig) -> frozenset[str]:
    """What a page needs before anyone asks for more; evaluations come besides."""
    return metrics_by_features(features_of(config))


@lru_cache(maxsize=256)
def metrics_by_features(features: ChartFeatures) -> frozenset[str]:
    charts = [
        one for section in sections_by_features(features) for one in section.charts
    ]
    return AXES.union(*map(metrics_of, charts))


def metrics_of(one: Chart) -> set[str]:
    metas = [trace["meta"] for trace in one.figure["data"]]
    return {term[0] for meta in metas for term in meta.get("terms", [])}


@lru_cache(maxsize=1)
def metric_figure() -> dict[str, Any]:
    """The chart of any one metric; the browser puts in which."""
    tree = chart("metric", "", [line("metric", color=1)], y="").figure
    tree["data"][0]["meta"] = {"each": "", "smooth": True, "still": STILL, "band": True}
    return tree


def settings_of(run: Run) -> RunConfig | None:
    """None: it was imported, and no one knows them."""
    return None if run.is_imported else RunConfig.model_validate(run.config)


def sections_of(run: Run) -> list[Section]:
    """Of an imported run only charts that have values, and no notes on settings."""
    config = settings_of(run)
    if config is not None:
        return overview_sections(config)
    known = set(run.metric_names)
    sections = [
        replace(
            section,
            charts=[chart for chart in section.charts if known & metrics_of(chart)],
            notes=[],
        )
        for section in sections_by_features(_features_of_import(run))
    ]
    return [section for section in sections if section.charts]


def metrics_shown(run: Run) -> frozenset[str]:
    """What its page needs before anyone asks for more."""
    config = settings_of(run)
    return (
        shown_metrics(config)
        if config
        else metrics_by_features(_features_of_import(run))
    )


def _features_of_import(run: Run) -> ChartFeatures:
    rules = run.config["reward"]["recipe"]["rules"]
    return ChartFeatures(
        rules=tuple(rule["name"] for rule in rules),
        scheduled=(),
        eval_sets=(),
        has_reference=True,
        samples_kl=False,
        has_dual_clip=False,
        has_penalty=False,
        samples_again=False,
        is_stale=False,
    )


def read_settings(user: User) -> str:
    """How they want charts drawn, for all runs, as the end of an address.

    What an address itself says goes first. Empty when nothing is kept.
    """
    kept = ChartSettings.objects.filter(user=user)
    return kept.values_list("query", flat=True).first() or ""


def keep_settings(user: User, given: QueryDict) -> str:
    """What is kept now; ValueError when it means nothing. Of nothing, nothing."""
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
