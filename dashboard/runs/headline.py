"""The head of a run's Overview: a sentence on its rewards, and five numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from dashboard.accounts.templatetags.numbers import NOTHING, sig3, write_with_margin
from dashboard.project.database import FixedQuery
from dashboard.runs.charts.chart import chart_id, clip_all
from dashboard.runs.charts.series import (
    MAX_POINTS,
    NONE,
    Curve,
    Series,
    make_buckets,
    read_evaluated,
    read_steps,
    read_thinned,
)
from dashboard.runs.checkpoints.listing import best_metric, find_margins, is_score_name
from dashboard.runs.models import REWARD, Checkpoint, Run
from dashboard.runs.queries import Keyed, as_of
from trainer.metric_names import MAIN_SET, better_of, title_of

STALL_STEPS = 100
EARLY_STEPS, EARLY_SHARE = 20, 0.1  # before both, noise looks like a trend
MAX_WHOLE = 1_000  # of steps; of a longer run some are read
MAX_RECENT = 200
NUM_SPARK = 60
LEAST_POINTS = 10
CONSTANT, EFFECTIVE = "group/frac_zero_std", "group/num_effective"
LENGTH, TRUNCATED = "completion/mean_length", "completion/frac_truncated"
TEACHER = "distill/kl"
READ = (REWARD, CONSTANT, EFFECTIVE, TEACHER, "kl/mean", "entropy", LENGTH, TRUNCATED)
Trend = Literal["better", "worse", ""]
Evaluated = Mapping[str, Series]
Curves = dict[str, Curve]
Points = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """A held-out score with its 95% interval, by evaluation."""

    metric: str
    scores: Curve
    margins: list[float | None]  # half of each interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    text: str
    is_stalled: bool = False
    is_early: bool = False  # too few steps for a trend


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    metric: str
    title: str
    value: str
    note: str = ""  # beside the value: "of 32"
    change: str = ""  # "+0.45 since step 1"
    trend: Trend = ""
    hint: str = ""  # the steps of the mean, and the last value
    spark: str = ""  # points of a polyline, 100 wide and 24 high

    @property
    def chart(self) -> str:
        """The id of its chart; shares of groups have one in common."""
        is_share = self.metric in (CONSTANT, EFFECTIVE)
        return chart_id("group/frac_…" if is_share else self.metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    checkpoint: Checkpoint
    metric: str
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    verdict: Verdict
    tiles: list[Tile]
    best: Best | None  # of an ended run
    reward: Curve  # of a long run some of its steps


def read_headline(run: Run) -> Headline:
    """Two queries; of an ended run one, which also finds its newest checkpoint."""
    checkpoints = kept_checkpoints(run) if run.has_ended else []
    # What an ended run measured does not change until it is extended.
    read = _read_once if run.has_ended else _read
    steps = frozenset(checkpoint.step for checkpoint in checkpoints)
    curves, evaluated = read(as_of(run, run.seq), steps)
    held_out = held_out_of(evaluated)
    verdict = write_verdict(
        curves[REWARD],
        held_out,
        last_step=run.last_step,
        num_steps=run.num_steps,
        is_live=not run.has_ended,
    )
    tiles = make_tiles(curves, held_out, run.last_step)
    if verdict.is_early:
        tiles = [replace(tile, trend="") for tile in tiles]
    return Headline(
        verdict=verdict,
        tiles=tiles,
        best=_find_best(run, checkpoints, curves[REWARD], evaluated),
        reward=curves[REWARD],
    )


def _read(run: Keyed[Run], also: frozenset[int]) -> tuple[Curves, Evaluated]:
    clipped = {
        name: Series(steps=series.steps, values=clip_all(series.values))
        for name, series in read_evaluated([run.value])[run.value.pk].items()
    }
    return _read_steps(run.value, also), clipped


_read_once = lru_cache(maxsize=100)(_read)


def kept_checkpoints(run: Run) -> list[Checkpoint]:
    """Read them once, the newest first."""
    checkpoints: list[Checkpoint] | None = vars(run).get("kept_checkpoints")
    if checkpoints is None:
        checkpoints = vars(run)["kept_checkpoints"] = _checkpoints_of(run.pk)
        for checkpoint in checkpoints:
            checkpoint.run = run
        # As the property finds it.
        run.newest_checkpoint = checkpoints[0] if checkpoints else None
    return checkpoints


_checkpoints_of = FixedQuery(
    lambda run: Checkpoint.objects.filter(
        run=run, superseded_by=None, deleted_at=None
    ).order_by("-step")
)


def _read_steps(run: Run, also: AbstractSet[int]) -> Curves:
    """Read the whole history; of a long one its recent steps and some of the others."""
    is_long = run.last_step > MAX_WHOLE
    metrics = read_steps(
        [run], READ, at={run.pk: _sampled_steps(run) | also} if is_long else None
    )[run.pk].metrics
    if is_long and len(metrics[REWARD]) < LEAST_POINTS:
        # A trainer outside Cohort may report every hundredth step only.
        buckets = make_buckets(run.fork_step or 0, run.last_step, MAX_POINTS)
        metrics = read_thinned([run], READ, {run.pk: buckets})[run.pk].metrics
    return {
        name: Curve(
            steps=series.steps.tolist(), values=clip_all(series.values).tolist()
        )
        for name, series in metrics.items()
    }


def _sampled_steps(run: Run) -> set[int]:
    first, last = (run.fork_step or 0) + 1, run.last_step
    stride = max(1, (last - first) / (NUM_SPARK - 1))
    spread = {round(first + place * stride) for place in range(NUM_SPARK)}
    begin = last - last // 10
    recent = range(begin + 1, last + 1, max(1, (last - begin) // MAX_RECENT))
    return spread | set(recent) | set(range(last - STALL_STEPS + 1, last + 1))


def held_out_of(evaluated: Evaluated) -> HeldOut | None:
    """Find the scores of the run's own held-out prompts, else of its first set."""
    metrics = [n for n in evaluated if n.startswith("eval/") and n.endswith("/mean")]
    own = f"eval/{MAIN_SET}/mean"
    metric = own if own in metrics else min(metrics, default=own)
    scores = Curve.of(evaluated.get(metric, NONE))
    margins = list(map(find_margins(evaluated, metric).get, scores.steps))
    return HeldOut(metric=metric, scores=scores, margins=margins) if margins else None


def _find_best(
    run: Run,
    kept: Sequence[Checkpoint],
    reward: Curve,
    evaluated: Evaluated,
) -> Best | None:
    """Find the best checkpoint by the metric that the run keeps it by."""
    scores = {
        name: dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        for name, series in evaluated.items()
        if is_score_name(name)
    }
    scores[REWARD] = dict(zip(reward.steps, reward.values, strict=True))
    steps = {checkpoint.step for checkpoint in kept}
    there = {name: by for name, by in scores.items() if steps & by.keys()}
    metric = best_metric(run, there)
    values_at = there.get(metric, {})
    scored = [checkpoint for checkpoint in kept if checkpoint.step in values_at]
    if not scored:
        return None
    best = max(
        scored, key=lambda checkpoint: (values_at[checkpoint.step], -checkpoint.step)
    )
    return Best(checkpoint=best, metric=metric, score=values_at[best.step])


def write_verdict(
    reward: Curve,
    held_out: HeldOut | None,
    *,
    last_step: int,
    num_steps: int,
    is_live: bool,
) -> Verdict:
    """Compare the first step with the mean of the last tenth; evaluations from the
    first on.

    >>> curve = Curve(steps=[*range(1, 41)], values=[step / 40 for step in range(40)])
    >>> write_verdict(curve, None, last_step=40, num_steps=50, is_live=True).text
    'Reward rose from 0 to 0.938.'
    """
    if not reward.values and held_out is None:
        text = "No reward yet." if is_live else "The run measured no reward."
        return Verdict(text=text)
    num_before = reward.steps[0] - 1 if reward.steps else 0  # of the run it forks
    num_done, num_own = last_step - num_before, num_steps - num_before
    if is_live and num_done < max(EARLY_STEPS, EARLY_SHARE * num_own):
        of = f" of {num_steps:,}" if num_steps > last_step else ""  # else unknown
        text = f"Too early to tell: step {last_step:,}{of}."
        return Verdict(text=text, is_early=True)
    is_stalled = is_live and _is_stalled(reward)
    sentences = [
        _describe_reward(reward, last_step, is_live=is_live),
        _describe_held_out(held_out, is_live=is_live),
        f"No clear improvement in the last {STALL_STEPS} steps." if is_stalled else "",
    ]
    return Verdict(text=" ".join(filter(None, sentences)), is_stalled=is_stalled)


def _describe_reward(reward: Curve, last_step: int, *, is_live: bool) -> str:
    if not reward.values:
        return ""
    first, now = reward.values[0], _recent_mean(reward, last_step)
    if len(reward.values) == 1:
        return f"Reward is {_score(first)} at step {reward.steps[0]:,}."
    # The first step is one draw, and so is, nearly, the mean of few others.
    return _compare(
        "Reward", first, now, reward, noise=2 * _noise(reward.values), is_live=is_live
    )


def _recent_mean(reward: Curve, last_step: int) -> float:
    """Over the last tenth of the steps, at least one."""
    begin = last_step - max(1, last_step // 10)
    recent = [value for step, value in _points(reward) if step > begin]
    return statistics.fmean(recent or reward.values[-1:])


def _noise(values: Sequence[float]) -> float:
    """Return the deviation of one value, from how neighbours differ: a trend is no
    noise.
    """
    if len(values) < 4:
        return math.inf
    return statistics.stdev(
        later - before for before, later in pairwise(values)
    ) / math.sqrt(2)


def _describe_held_out(held_out: HeldOut | None, *, is_live: bool) -> str:
    if held_out is None:
        return ""
    title = title_of(held_out.metric)
    steps, values = held_out.scores.steps, held_out.scores.values
    first, now, margin = values[0], values[-1], held_out.margins[-1]
    if len(values) == 1:
        return f"{title} is {write_with_margin(now, margin)} at step {steps[0]:,}."
    noise = math.hypot(margin or 0, held_out.margins[0] or 0)
    since = _unchanged_since(held_out)
    text = _compare(
        title, first, now, held_out.scores, noise=noise, margin=margin, is_live=is_live
    )
    return f"{text[:-1]}, no clear change since step {since:,}." if since else text


def _unchanged_since(held_out: HeldOut) -> int | None:
    """Find the first of at least three evaluations within the interval of the last.

    None if a line through them rises or falls: little change is not none.
    """
    margin = held_out.margins[-1]
    if margin is None:
        return None
    points = _points(held_out.scores)
    near: Points = []
    for step, value in reversed(points):
        if abs(value - points[-1][1]) > margin:
            break
        near.append((step, value))
    slope, error = _slope(near)
    return near[-1][0] if len(near) < len(points) and abs(slope) <= error else None


def _slope(points: Points) -> tuple[float, float]:
    """Fit a line, and return its slope with half of its 95% interval; NaN below 3
    points.

    By the normal quantile the interval of few points is short: it rather finds a trend.
    """
    if len(points) < 3:
        return math.nan, math.nan
    steps, values = zip(*points, strict=True)
    slope, start = statistics.linear_regression(steps, values)
    residuals = sum((value - start - slope * step) ** 2 for step, value in points)
    freedom = (len(points) - 2) * len(points)
    return slope, 1.96 * math.sqrt(residuals / freedom / statistics.pvariance(steps))


def _points(curve: Curve) -> Points:
    return list(zip(curve.steps, curve.values, strict=True))


def _compare(
    title: str,
    first: float,
    now: float,
    curve: Curve,
    *,
    noise: float,
    margin: float | None = None,
    is_live: bool,
) -> str:
    then, current = _score(first), write_with_margin(now, margin)
    if abs(now - first) > noise and then != _score(now):
        return f"{title} {'rose' if now > first else 'fell'} from {then} to {current}."
    slope, error = _slope(_points(curve))
    change = " shows no clear change:" if abs(slope) <= error else ":"
    return (
        f"{title}{change} {then} at the start, "
        f"{current} {'now' if is_live else 'at the end'}."
    )


def _is_stalled(reward: Curve) -> bool:
    """Tell whether a line through the last steps does not clearly rise."""
    if not reward.steps or reward.steps[-1] - reward.steps[0] < STALL_STEPS - 1:
        return False
    begin = reward.steps[-1] - STALL_STEPS
    slope, error = _slope(points := [p for p in _points(reward) if p[0] > begin])
    return len(points) >= LEAST_POINTS and slope <= error


def make_tiles(
    curves: Mapping[str, Curve], held_out: HeldOut | None, last_step: int
) -> list[Tile]:
    """Means of the last tenth of the steps, as in the verdict.

    With a teacher, the distance to it comes first.
    """
    reward = _tile(REWARD, "Reward", curves[REWARD], last_step)
    scores = reward, _held_out_tile(held_out)
    groups, length = _groups_tile(curves, last_step), _length_tile(curves, last_step)
    if curves[TEACHER].values:
        distance = _tile(TEACHER, title_of(TEACHER), curves[TEACHER], last_step)
        return [distance, *scores[::-1], groups, length]
    name = "kl/mean" if curves["kl/mean"].values else "entropy"
    title = title_of(name).split(" to ")[0]
    return [*scores, groups, _tile(name, title, curves[name], last_step), length]


def _held_out_tile(held_out: HeldOut | None) -> Tile:
    """Show the last evaluation alone: it has an interval of its own."""
    title = title_of(f"eval/{MAIN_SET}/mean")
    if held_out is None:
        return Tile(metric=f"eval/{MAIN_SET}/mean", title=title, value=NOTHING)
    margin = held_out.margins[-1]
    _, sign, spread = write_with_margin(0, margin).partition(" ± ")
    return _tile(
        held_out.metric,
        title,
        held_out.scores,
        0,
        note=f"± {spread}" if sign else "",
        write=lambda score: write_with_margin(score, margin).partition(" ± ")[0],
    )


def _groups_tile(curves: Mapping[str, Curve], last_step: int) -> Tile:
    """Show a number of groups where that is known, else a share.

    Fewer are neither better nor worse: the others may all be right.
    """
    title = title_of(EFFECTIVE)
    constant, effective = curves[CONSTANT], curves[EFFECTIVE]
    if not constant.values:
        return Tile(metric=CONSTANT, title=title, value=NOTHING)
    shares = [1 - value for value in constant.values]
    mixed = Curve(steps=constant.steps, values=shares)
    if constant.steps[-1:] != effective.steps[-1:] or shares[-1] <= 0:
        return _tile(CONSTANT, title, mixed, last_step, write=_share)
    total = round(effective.values[-1] / shares[-1])
    return _tile(
        EFFECTIVE,
        title,
        effective,
        last_step,
        note=f"of {total:,}",
        write="{:,.0f}".format,
    )


def _length_tile(curves: Mapping[str, Curve], last_step: int) -> Tile:
    cut = curves[TRUNCATED]
    share = f"{_share(_recent_mean(cut, last_step))} truncated" if cut.values else ""
    title, note = "Completion length", share or "tokens"
    return _tile(LENGTH, title, curves[LENGTH], last_step, note=note, write=_whole)


def _tile(
    metric: str,
    title: str,
    curve: Curve,
    last_step: int,
    *,
    note: str = "",
    write: Callable[[float], str] | None = None,
) -> Tile:
    """Show the mean of the last tenth of `last_step` steps; of 0 steps the last
    value.
    """
    write = write or _score
    if not curve.values:
        return Tile(metric=metric, title=title, value=NOTHING)
    first, now = curve.values[0], curve.values[-1]
    if last_step:
        now = _recent_mean(curve, last_step)
    begin = max(curve.steps[0], last_step - max(1, last_step // 10) + 1)
    mean = f"Mean of steps {begin:,} to {last_step:,}. " if begin < last_step else ""
    return Tile(
        metric=metric,
        title=title,
        value=write(now),
        note=note,
        change=_change(now - first, write, curve.steps) if len(curve.steps) > 1 else "",
        trend=_trend(metric, now - first),
        hint=f"{mean}Step {curve.steps[-1]:,}: {write(curve.values[-1])}",
        spark=draw_spark(curve.values),
    )


def _change(by: float, write: Callable[[float], str], steps: Sequence[int]) -> str:
    text = write(abs(by))
    change = (
        "no change"
        if float(by) == 0 or text in {"0", "0%"}
        else f"{'+' if by > 0 else '−'}{text}"
    )
    return f"{change} since step {steps[0]:,}"


def _trend(metric: str, by: float) -> Trend:
    better = None if metric in (CONSTANT, EFFECTIVE) else better_of(metric)
    if better is None or by == 0:
        return ""
    return "better" if (by > 0) == (better == "higher") else "worse"


def draw_spark(
    values: Sequence[float], scale: tuple[float, float] | None = None
) -> str:
    """Draw at most 60 points, the last one included; none of a single value.

    From the bottom to the top is `scale`, else what the values span.

    >>> draw_spark([0.0, 1.0, 0.5])
    '0,23 50,1 100,12'
    """
    stride = -(-len(values) // NUM_SPARK)
    drawn = values[::-1][::stride][::-1]
    if len(drawn) < 2:
        return ""
    low, high = scale or (min(drawn), max(drawn))
    size = high - low
    if not size or not math.isfinite(size):
        heights = [12.0] * len(drawn)
    else:
        heights = [23 - 22 * (value - low) / size for value in drawn]
    return " ".join(
        f"{100 * place / (len(drawn) - 1):.4g},{height:.3g}"
        for place, height in enumerate(heights)
    )


def _score(value: float) -> str:
    return sig3(value)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else _score(value)


def _share(value: float) -> str:
    """Whole percent, below 10% with a decimal."""
    percent = 100 * value
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%"
