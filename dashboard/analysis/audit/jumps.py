"""Where the reward of a run jumps, and what else changed around a step."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dashboard.analysis.audit.changes import (
    LEAST_SIDE,
    LEAST_WINDOW,
    WINDOW_SHARE,
    Change,
    Window,
    find_change,
)
from dashboard.analysis.audit.findings import LARGE
from dashboard.analysis.audit.signals import ENTROPY, KL, LENGTH, read_series
from dashboard.analysis.statistics import Array
from dashboard.completions.models import StepRollup
from dashboard.completions.rewards import rule_names
from dashboard.completions.signals.composition import Compositions, read_compositions
from dashboard.completions.signals.rule_shares import Sums
from dashboard.runs.charts.chart import clip_all
from dashboard.runs.charts.series import Curve, Series, read_evaluated, read_steps
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.snapshot import flatten_config, write_setting
from dashboard.runs.headline import MAX_WHOLE
from dashboard.runs.models import REWARD, Run
from dashboard.runs.queries import Keyed, as_of, settings_of
from trainer.config import RunConfig
from trainer.metric_names import MAIN_SET, find_metric, title_of

MAX_WINDOW = 50  # points on either side
REACH = 3  # windows that are read on either side, for the noise
CLEAR_ERRORS = 5  # standard errors
LEAST_RISE = 0.6  # of the way between the lowest and the highest mean of a window
LEAST_PART = 0.05  # of the reward's change: what no rule explains is shown from here on
NAMED = 0.2  # of the value before
MAX_RULES = 6
Scores = dict[str, tuple[float | None, float | None]]  # of rules, on both sides
TRUNCATED, CONSTANT = "completion/frac_truncated", "group/frac_zero_std"
METRICS = (LENGTH, TRUNCATED, ENTROPY, KL, CONSTANT)


def window_of(num: int) -> int:
    """Points on either side that are compared, of a run of so many."""
    return max(LEAST_WINDOW, min(MAX_WINDOW, math.ceil(WINDOW_SHARE * num)))


def find_jump(series: Series) -> int | None:
    """Find the first step after a jump: where the means of windows of a tenth of the
    points on both sides differ by the most standard errors.

    None: the difference is below 5 standard errors, or below 60% of the way that the
    means of windows go in all, as when a reward rises evenly.
    """
    num, width = len(series), window_of(len(series))
    if num < 2 * width:
        return None
    values = clip_all(series.values)
    sums = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    at = np.arange(LEAST_SIDE, num - LEAST_SIDE + 1)
    begin, end = np.maximum(at - width, 0), np.minimum(at + width, num)
    before = (sums[at] - sums[begin]) / (at - begin)
    after = (sums[end] - sums[at]) / (end - at)
    errors = np.sqrt(1 / (at - begin) + 1 / (end - at))
    index = int(np.argmax(np.abs(after - before) / errors))
    rise = abs(float(after[index] - before[index]))
    # From how neighbours differ: a trend is no noise.
    noise = float(np.std(np.diff(values))) / math.sqrt(2)
    is_clear = rise > CLEAR_ERRORS * noise * errors[index]
    is_jump = is_clear and _is_steep(values, rise, width)
    return int(series.steps[at[index]]) if is_jump else None


def _is_steep(values: Array, rise: float, width: int) -> bool:
    sums = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    return rise > LEAST_RISE * float(np.ptp((sums[width:] - sums[:-width]) / width))


def locate_jump(run: Run, reward: Curve) -> int | None:
    """Find it in the reward that the Overview has read. Two queries for a long run."""
    if run.last_step <= MAX_WHOLE:
        return find_jump(
            Series(
                steps=np.array(reward.steps, np.int64), values=np.array(reward.values)
            )
        )
    if REWARD not in run.metric_names:
        return None
    return _locate(as_of(run, run.seq))


@lru_cache(maxsize=100)
def _locate(keyed: Keyed[Run]) -> int | None:
    run = keyed.value
    first = (run.fork_step or 0) + 1
    stride = max(1, (run.last_step - first) // MAX_WHOLE)
    jump = find_jump(_read_rewards(run, range(first, run.last_step + 1, stride)))
    if jump is None or stride == 1:
        return jump
    # Between the steps that were read, the windows are of neighbouring steps.
    near = range(max(first, jump - 2 * stride), jump + 2 * stride)
    return find_jump(_read_rewards(run, near)) or jump


def explain_jump(run: Run, reward: Curve) -> Around | None:
    at = locate_jump(run, reward)
    return None if at is None else explain(run, at)


def _read_rewards(run: Run, steps: range) -> Series:
    return read_steps([run], [REWARD], at={run.pk: steps})[run.pk].metrics[REWARD]


# What changed around a step.


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleChange:
    """A rule's mean score on both sides, and its part in the change of the reward."""

    rule: str
    before: float | None
    after: float | None
    part: float | None  # None: parts do not add up to the reward, or are unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricChange:
    metric: str
    change: Change
    is_clear: bool
    is_jump: bool  # clear, and no part of a trend

    @property
    def title(self) -> str:
        return title_of(self.metric).removesuffix(" (mean)")

    @property
    def unit(self) -> str:
        metric = find_metric(self.metric)
        return metric.unit if metric else ""

    @property
    def is_share(self) -> bool:
        return self.unit == "share"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Settings that hold from a step on, and why."""

    step: int
    title: str
    settings: list[tuple[str, str, str]] = field(default_factory=list)  # old and new


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutChange:
    """The last evaluation before a step, and the first one from it on."""

    metric: str
    steps: tuple[int, int]
    scores: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """Windows on both sides of a step, compared."""

    reward: MetricChange
    rules: list[RuleChange]  # the largest part first
    num_rules: int
    rest: float | None  # of the reward's change, in no rule's part
    metrics: list[MetricChange]
    held_out: HeldOutChange | None
    moments: list[Moment]

    @property
    def change(self) -> Change:
        return self.reward.change

    @property
    def causes(self) -> list[RuleChange]:
        """Rules whose part is most of the change, as few as make up 80% of it."""
        total, causes_found = 0.0, []
        for rule in self.rules:
            if not rule.part or rule.part * self.change.difference <= 0:
                continue
            causes_found.append(rule)
            total += rule.part
            if abs(total) >= 0.8 * abs(self.change.difference):
                break
        return causes_found

    @property
    def jumping(self) -> list[MetricChange]:
        """By enough to be named beside the reward."""
        return [
            metric
            for metric in self.metrics
            if metric.is_jump
            and abs(metric.change.difference) >= NAMED * abs(metric.change.before.mean)
        ]


def explain(run: Run, at: int) -> Around | None:
    """Eight queries at most; none for windows that were asked for before.

    None: there are too few steps on one side, or no rewards.
    """
    width = window_of(run.last_step)
    evaluation = run.config.get("evaluation") or {}
    later = max(REACH * width, evaluation.get("every_steps") or 0)
    is_complete = run.last_step >= at + later and not run.is_imported
    # Rollups of an imported run may be filled after its end.
    find = _explain if (run.is_imported and run.has_ended) else _explain_once
    # Windows that are complete do not change.
    return find(as_of(run, 0 if is_complete else run.seq), at, width)


def _explain(keyed: Keyed[Run], at: int, width: int) -> Around | None:
    run = keyed.value
    read = _read_metrics(run, at, most=REACH * width)
    # An outside run may report some of its steps only.
    width = max(LEAST_WINDOW, min(width, len(read.get(REWARD, ())) // 4))
    changes = {
        metric: change
        for metric, series in read.items()
        if (change := find_change(series, at=at, width=width)) is not None
    }
    if REWARD not in changes:
        return None
    change = changes[REWARD]
    rules = _compare_rules(run, read, change)
    parts = [rule.part for rule in rules if rule.part is not None]
    rest = change.difference - sum(parts) if len(parts) == len(rules) else None
    if rest is None or not parts or abs(rest) < LEAST_PART * abs(change.difference):
        rest = None
    return Around(
        reward=_judge(REWARD, change, read[REWARD]),
        rules=rules[:MAX_RULES],
        num_rules=len(rules),
        rest=rest,
        metrics=[
            _judge(metric, changes[metric], read[metric])
            for metric in METRICS
            if metric in changes
        ],
        held_out=_compare_held_out(run, at),
        moments=sorted(_moments(run, change), key=lambda moment: moment.step),
    )


_explain_once = lru_cache(maxsize=200)(_explain)


def _judge(metric: str, change: Change, read: Series) -> MetricChange:
    """Clear as in the audit, at a step that the reader chose."""
    is_large = change.effect is None or abs(change.effect) >= LARGE
    is_clear = is_large and not change.low <= 0 <= change.high
    # A metric may have fewer values than the reward.
    width = min(change.before.num, change.after.num)
    is_jump = is_clear and _is_steep(read.values, abs(change.difference), width)
    return MetricChange(
        metric=metric, change=change, is_clear=is_clear, is_jump=is_jump
    )


def _read_metrics(run: Run, at: int, *, most: int) -> dict[str, Series]:
    """Read the nearest steps on both sides. Two queries."""
    scores = [_score_of(rule) for rule in rule_names(run)]
    steps = run.steps.filter(superseded_by=None).values_list("step", flat=True)
    before = steps.filter(step__lt=at).order_by("-step")[:most]
    after = steps.filter(step__gte=at).order_by("step")[:most]
    return read_series(run, [REWARD, *METRICS, *scores], at=before.union(after))


def _score_of(rule: str) -> str:
    return f"reward/{rule}/mean"


def _compare_rules(
    run: Run, read: dict[str, Series], change: Change
) -> list[RuleChange]:
    """Sort rules by the size of their part in the change. One query."""
    windows = change.before, change.after
    scores = {
        rule: (_mean(series, windows[0]), _mean(series, windows[1]))
        for rule in rule_names(run)
        if (series := read.get(_score_of(rule))) is not None
    }
    parts = _compare_parts(run, change, scores)
    changes = [
        RuleChange(rule=rule, before=before, after=after, part=parts.get(rule))
        for rule in dict.fromkeys([*scores, *parts])
        for before, after in [scores.get(rule, (None, None))]
    ]
    return sorted(changes, key=_size, reverse=True)


def _size(rule: RuleChange) -> float:
    if rule.part is not None:
        return abs(rule.part)
    return abs((rule.after or 0.0) - (rule.before or 0.0))


def _mean(series: Series, window: Window) -> float | None:
    inside = (series.steps >= window.first) & (series.steps <= window.last)
    return float(series.values[inside].mean()) if inside.any() else None


def _compare_parts(run: Run, change: Change, scores: Scores) -> dict[str, float]:
    """Sum each rule's part in the difference of mean rewards: of weight × score.

    Empty where parts do not add up to the reward, as of a product.
    """
    compositions = read_compositions(json.dumps(run.config))
    ends = [
        step
        for window in (change.before, change.after)
        for step in (window.first, window.last)
    ]
    if any(compositions.at(step).kind != "sum" for step in ends):
        return {}
    before, after = sides = Sums(), Sums()
    for step, names, packed in StepRollup.objects.filter(
        run=run, superseded_by=None, step__range=(ends[0], ends[-1])
    ).values_list("step", "rule_names", "rules"):
        if packed:
            sides[step >= change.step].add(names, bytes(packed))
    if not (before.num_scored and after.num_scored):
        return _weigh(compositions, change, scores)
    return {
        name: (after.mean_part(name) or 0.0) - (before.mean_part(name) or 0.0)
        for name in dict.fromkeys([*before.part_sum, *after.part_sum])
    }


def _weigh(
    compositions: Compositions, change: Change, scores: Scores
) -> dict[str, float]:
    """Weigh the mean scores of a trainer that reported no completions.

    Empty if the parts do not add up to the reward: weights are as they were reported.
    """
    weights = {}
    for rule, (before, after) in scores.items():
        if before is None or after is None:
            return {}
        (ours,), (theirs,) = (
            compositions.at(step).weights_at(step, [rule]).tolist()
            for step in (change.before.last, change.after.last)
        )
        weights[rule] = theirs * after - ours * before
    rest = abs(change.difference - sum(weights.values()))
    return weights if rest <= LEAST_PART * abs(change.difference) else {}


def _compare_held_out(run: Run, at: int) -> HeldOutChange | None:
    """Compare the run's own held-out prompts, else its first set. One query."""
    evaluated = read_evaluated([run])[run.pk]
    names = sorted(n for n in evaluated if re.fullmatch("eval/.*/mean", n))
    own = f"eval/{MAIN_SET}/mean"
    for metric in [own] if own in names else names:
        steps, values = evaluated[metric].steps.tolist(), evaluated[metric].values
        after = bisect_left(steps, at)
        if 0 < after < len(steps):
            return HeldOutChange(
                metric=metric,
                steps=(steps[after - 1], steps[after]),
                scores=(float(values[after - 1]), float(values[after])),
            )
    return None


def _moments(run: Run, change: Change) -> Iterator[Moment]:
    """Phases, changed settings and attempts that begin in the windows. Two queries."""
    first, last = change.before.first, change.after.last
    yield from _phases(run, first, last)
    for made in run.changes.filter(applied_step__range=(first, last - 1)):
        assert made.applied_step is not None, "filtered"
        yield Moment(
            step=made.applied_step + 1,
            title="Settings changed",
            settings=[(_title(p), str(old), str(new)) for p, old, new in made.values],
        )
    for attempt in run.attempts.filter(
        number__gt=1, from_step__range=(first, last - 1)
    ).order_by("number"):
        yield Moment(
            step=attempt.from_step + 1, title=f"Resumed as attempt {attempt.number}"
        )


def _phases(run: Run, first: int, last: int) -> Iterator[Moment]:
    try:
        config = settings_of(run)
    except ValueError:  # a rule of it no longer exists
        return
    phases = config.phase_configs if config else ()
    for before, after in pairwise(phases):
        if first < after.first_step <= last:
            yield Moment(
                step=after.first_step,
                title=f"Phase {after.name}",
                settings=list(differences(before.config, after.config)),
            )
    for phase in phases:
        begin, end = max(first, phase.first_step), min(last, phase.last_step)
        rules = phase.config.reward.recipe.rules if begin < end else ()
        moved = [
            (f"Weight of {name}", write_setting(old), write_setting(new))
            for name, old, new in [
                (r.name, r.weight_at(begin), r.weight_at(end)) for r in rules
            ]
            if old != new
        ]
        if moved:
            yield Moment(
                step=begin, title=f"Scheduled until step {end:,}", settings=moved
            )


def differences(one: RunConfig, other: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Title, old and new value of the settings in which two phases differ."""
    before, after = (
        dict(flatten_config(config.model_dump(mode="json"))) for config in (one, other)
    )
    for key in dict.fromkeys([*before, *after]):
        if key != "optim.num_steps" and before.get(key) != after.get(key):
            old, new = before.get(key), after.get(key)
            yield _title(key), write_setting(old), write_setting(new)


def _title(key: str) -> str:
    field = all_fields().get(key)
    parts = key.split(".")
    if field is None and parts[0] == "rules" and parts[-1] == "weight":
        return f"Weight of {'.'.join(parts[1:-1])}"
    return field.title if field else key
