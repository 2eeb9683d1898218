"""What a run's curriculum drew and gained, or what one would have gained.

The trainer's own lines (`trainer.curriculum`) go over the run's visits again. A run in
uniform order previews a curriculum: its groups, each with the weight that the evidence
before it would have given its prompt, are a sample of what would have been drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cohort.mismatch import round_numbers
from dashboard.analysis.statistics import Array, Estimate, mean_interval
from dashboard.completions.pass_rates import tally
from dashboard.completions.prompt_visits import (
    NUM_LAST,
    Span,
    Visits,
    find_span,
    grade,
    read_visits,
)
from dashboard.runs.charts.series import Buckets, Series, read_steps
from dashboard.runs.models import Run
from dashboard.runs.queries import settings_in
from trainer.config import CurriculumConfig
from trainer.curriculum import POOLS, Beliefs, draw_keys, weights_of

MAX_STEPS = 5_000  # the newest, of a longer run
MAX_COLUMNS = 30  # of a chart over steps: single estimates are noisy
MAX_TICKS = 8  # of steps
MAX_WEIGHED = 2_000_000  # prompts at all steps of a preview
PREVIEWED = ("pools", "learnability")
POOL_METRICS = tuple(f"curriculum/{pool}" for pool in POOLS)
UNIFORM, OUT = "curriculum/uniform_signal", "curriculum/num_out"
NO_SIGNAL = "group/frac_zero_std"
SAME = 1e-6  # deviation of equal rewards, which are stored as float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Shares of groups with signal: what the run had, and a curriculum would have."""

    kind: str
    would: Estimate
    had: float
    first_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CurriculumLab:
    span: Span
    previews: Sequence[Preview] = ()
    # Of a run with a curriculum:
    config: CurriculumConfig | None = None
    shares: dict[str, Estimate] = field(default_factory=dict)  # with signal
    num_out: int = 0
    dropped: Sequence[dict[str, Any]] = ()
    figures: dict[str, Any] = field(default_factory=dict)


def read_lab(run: Run) -> CurriculumLab | None:
    """Read it over the newest steps; None if none of them has groups."""
    span = find_span(run, first=max(run.last_step - MAX_STEPS, 0), last=None)
    if span is None:
        return None
    visits = grade(run, read_visits(run, span))
    visits = visits[visits["num_scored"] > 0]
    by_step = visits.take(np.argsort(visits["step"], kind="stable"))
    settings = None if run.is_imported else settings_in(run.config)
    if settings is None or not settings.has_curriculum:
        num_rows = 0
        if settings and run.dataset_version:
            num_rows = run.dataset_version.num_rows - settings.data.num_eval_rows
        previews = [preview_of(by_step, kind, num_rows=num_rows) for kind in PREVIEWED]
        return CurriculumLab(span=span, previews=[p for p in previews if p])
    config = settings.config_at(span.last).curriculum
    within = {run.pk: Buckets(first=span.first, last=span.last)}
    names = [*POOL_METRICS, UNIFORM, NO_SIGNAL, OUT]
    series = read_steps([run], names, within=within)[run.pk].metrics
    without = series[NO_SIGNAL]
    had = Series(steps=without.steps, values=1 - without.values)
    num_out = series[OUT].values
    return CurriculumLab(
        span=span,
        config=config,
        shares=compare_with_uniform(had, series[UNIFORM]),
        num_out=int(num_out[-1]) if len(num_out) else 0,
        dropped=list_dropped(by_step, config, step=span.last + 1),
        figures={
            "pools": _draw(
                [series[name] for name in POOL_METRICS],
                POOLS,
                span,
                y="prompts drawn",
                stackgroup="pools",
            ),
            "signal": _draw(
                [had, series[UNIFORM]],
                ("drawn", "uniform order"),
                span,
                y="groups with signal",
            ),
            "draws": _draw_draws(visits),
        },
    )


def compare_with_uniform(had: Series, uniform: Series) -> dict[str, Estimate]:
    """Return means over the steps that have both; empty without one.

    Estimates of uniform order may leave 0 to 1, which the share that they are of does
    not: such a mean and interval end there.
    """
    _, ours, theirs = np.intersect1d(had.steps, uniform.steps, return_indices=True)
    if not len(ours):
        return {}
    pairs = np.stack([had.values[ours], uniform.values[theirs]], axis=1)
    estimate = mean_interval(pairs[:, 1:])
    return {
        "drawn": mean_interval(pairs[:, :1]),
        "uniform": Estimate(
            value=estimate.value.clip(0, 1),
            low=estimate.low.clip(0, 1),
            high=estimate.high.clip(0, 1),
            num=estimate.num,
        ),
        "difference": mean_interval(pairs[:, :1] - pairs[:, 1:]),
    }


def replay(beliefs: Beliefs, visits: Visits, *, decay: float) -> Iterator[Visits]:
    """Yield each step's visits before the beliefs take them in; they are by step."""
    ends = np.flatnonzero(np.diff(visits["step"])) + 1
    for part in np.split(visits, ends) if len(visits) else ():
        yield part
        beliefs.add_visits(
            part["prompt"].astype(np.int64),
            right=part["num_right"].astype(np.float64),
            scored=part["num_scored"].astype(np.int64),
            step=int(part["step"][0]),
            decay=decay,
        )


def list_dropped(
    visits: Visits, config: CurriculumConfig, *, step: int
) -> list[dict[str, Any]]:
    """List what the gate dropped: what is out first, by the step of its return."""
    beliefs = Beliefs.about(np.unique(visits["prompt"]))
    for _ in replay(beliefs, visits, decay=config.decay):
        pass
    due = beliefs.due_steps(config)
    at = np.flatnonzero(due)
    at = at[np.lexsort((at, due[at], due[at] <= step))]
    return [
        {
            "prompt": int(beliefs.rows[place]),
            "last_step": int(beliefs.last_step[place]),
            "due_step": int(due[place]),
            "is_due": bool(due[place] <= step),
            "is_right": bool(beliefs.streak[place] > 0),
        }
        for place in at.tolist()
    ]


def preview_of(visits: Visits, kind: str, *, num_rows: int) -> Preview | None:
    """Weigh each group by its chance under a curriculum; None without evidence.

    Steps count from the first one on that visits a prompt again. `visits` are by step;
    `num_rows` are trained on, as far as it is known.
    """
    config = CurriculumConfig.model_validate({"kind": kind})
    beliefs = Beliefs.about(np.unique(visits["prompt"]))
    num_rows = max(num_rows, len(beliefs.rows), 1)
    num_weighed = max(20, min(300, MAX_WEIGHED // num_rows))
    every = -(-len(np.unique(visits["step"])) // num_weighed)
    tops, bottoms, had = [], [], []
    first_step = 0
    for number, groups in enumerate(replay(beliefs, visits, decay=config.decay)):
        at, step = beliefs.places_of(groups["prompt"]), int(groups["step"][0])
        first_step = first_step or (step if beliefs.seen[at].any() else 0)
        if number % every or not first_step:
            continue
        group_size = int(groups["num_completions"].max())
        weights = weights_of(beliefs, config, group_size=group_size, seed=step)
        unseen = max(config.unseen_weight, config.floor_weight)
        rest = (unseen, num_rows - len(weights))
        chances = inclusion_chances(weights, rest, num=len(at), seed=step)[at]
        signal = groups["std"] > SAME
        tops.append((chances * signal).sum())
        bottoms.append(chances.sum())
        had.append(signal.mean())
    if len(had) < 2:
        return None
    return Preview(
        kind=kind,
        would=ratio_interval(np.array(tops), np.array(bottoms)),
        had=float(np.mean(had)),
        first_step=first_step,
    )


def ratio_interval(tops: Array, bottoms: Array) -> Estimate:
    """Return Σ tops / Σ bottoms of steps; its interval is of the linearization."""
    value = tops.sum() / bottoms.sum()
    linear = value + (tops - value * bottoms) / bottoms.mean()
    return mean_interval(linear[:, None])


def inclusion_chances(
    weights: Array, rest: tuple[float, int], *, num: int, seed: int
) -> Array:
    """Return the chance 1 − key^w of each to be among `num` that are drawn.

    key: the largest that is left when `num` are drawn, as `trainer.curriculum.draw` has
    it; `rest`: the weight of further prompts, and how many there are.
    """
    weight, count = rest
    if num >= len(weights) + count:
        return np.ones(len(weights))
    keys = draw_keys(np.append(weights, np.full(count, weight)), seed=seed)
    chances: Array = -np.expm1(np.partition(keys, -num - 1)[-num - 1] * weights)
    return chances


def _draw(
    lines: Sequence[Series], names: Sequence[str], span: Span, *, y: str, **more: Any
) -> dict[str, Any]:
    """Draw shares over steps, averaged over columns of steps."""
    width = -(-(span.last - span.first + 1) // MAX_COLUMNS)
    traces = []
    for colour, (name, series) in enumerate(zip(names, lines, strict=True), start=1):
        columns, at = np.unique(
            (series.steps - span.first) // width, return_inverse=True
        )
        # An estimate by weights may exceed 1; no share does.
        means = np.clip(np.bincount(at, series.values) / np.bincount(at), 0, 1)
        last = np.minimum(span.first + (columns + 1) * width - 1, span.last)
        traces.append(
            {
                "type": "scatter",
                "name": name,
                "mode": "lines",
                "x": last.tolist(),
                "y": round_numbers(means),
                "line": {"color": f"var(--cohort-series-{colour})", "width": 2},
                "hovertemplate": "%{y:.0%}",
                **more,
            }
        )
    is_short = span.last - span.first < MAX_TICKS  # no step is between two others
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "tickformat": ",d"}
        | ({"dtick": 1} if is_short else {"nticks": MAX_TICKS}),
        "yaxis": {"title": {"text": y}, "tickformat": ".0%", "rangemode": "tozero"},
        "hovermode": "x unified",
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _draw_draws(visits: Visits) -> dict[str, Any]:
    """Draw how often prompts with a pass rate were drawn, in tenths, of those drawn."""
    tallies = tally(visits, num_last=NUM_LAST)
    tenths = np.rint(10 * tallies["num_right"] / tallies["num_scored"]).astype(int)
    num = np.bincount(tenths, minlength=11)
    draws = np.bincount(tenths, tallies["num_seen"], minlength=11)
    bars = {
        "type": "bar",
        "x": [f"{10 * tenth}%" for tenth in range(11)],
        "y": round_numbers(draws / np.maximum(num, 1)),
        "customdata": num.tolist(),
        "marker": {"color": "var(--cohort-series-1)"},
        "hovertemplate": "%{y:.3~g} draws, %{customdata:,} prompts<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "pass rate"}, "type": "category", "nticks": 6},
        "yaxis": {"title": {"text": "draws per drawn prompt"}, "rangemode": "tozero"},
        "showlegend": False,
    }
    return {"data": [bars], "layout": layout}
