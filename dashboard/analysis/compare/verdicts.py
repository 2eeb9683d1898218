"""Summary values of runs, verdicts on whether two sets differ, and the conclusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.analysis.compare.differences import Setting
from dashboard.analysis.compare.points import read_drawn
from dashboard.analysis.compare.seeds import (
    MEAN,
    MIN_BAND,
    STATISTICS,
    Arrangement,
    RunSet,
    by_seed,
    can_pair,
)
from dashboard.analysis.compare.series import (
    Better,
    Window,
    find_window,
    window_means,
)
from dashboard.analysis.statistics import (
    MOST_SEEDS,
    Array,
    Estimate,
    moments,
    seeds_needed,
    subtract,
    t_quantile,
)
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.charts.chart import clip, clip_all
from dashboard.runs.charts.series import read_steps
from dashboard.runs.models import REWARD, Evaluation, MetricSummary, Run
from trainer.metric_names import MAIN_SET, title_of

Kind = Literal[
    "none", "incomparable", "one", "open", "same", "better", "worse", "differs"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of a run or of a set of them."""

    value: float | None
    delta: float | None  # to the baseline; None: it is the baseline, or one lacks it
    better: Better = "higher"
    is_of_one: bool = False  # it or the baseline's is of one run, so nothing is better

    @property
    def direction(self) -> str:
        if not self.delta or self.better == "neither" or self.is_of_one:
            return "same"
        return "better" if (self.delta > 0) == (self.better == "higher") else "worse"


def make_figures(
    values: Sequence[float | None], nums: Sequence[int], better: Better
) -> list[Figure]:
    """Compare the value of each set, which has so many runs, with that of the first."""
    base = values[0]
    return [
        Figure(
            value=value,
            delta=None
            if index == 0 or value is None or base is None
            else float(subtract(np.array(value), np.array(base))),
            better=better,
            is_of_one=min(nums[0], nums[index]) < 2,
        )
        for index, value in enumerate(values)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    title: str
    figures: list[Figure]  # one per set of runs


def compare_summaries(
    runs: Sequence[Run], sets: Sequence[Sequence[int]]
) -> list[Column]:
    """Compare the last and best reward, then each held-out set's; one query.

    A figure for each set of runs, which are named by their indices: the mean of theirs.
    """
    columns = [
        ("Reward, last", [run.reward("last") for run in runs]),
        ("Reward, best", [run.reward("best") for run in runs]),
    ]
    summaries = MetricSummary.objects.filter(run__in=runs)
    summaries = summaries.filter(name__regex="^eval/[^/]+/mean$").order_by("name")
    held_out: dict[str, dict[int, tuple[float, float]]] = {}
    for pk, name, last, high in summaries.values_list("run_id", "name", "last", "high"):
        held_out.setdefault(name, {})[pk] = last, high
    for name, by_run in held_out.items():
        last_and_best = [by_run.get(run.pk, (None, None)) for run in runs]
        columns += [
            (f"{title_of(name)}, last", [last for last, _ in last_and_best]),
            (f"{title_of(name)}, best", [best for _, best in last_and_best]),
        ]
    nums = [len(run_set) for run_set in sets]
    return [
        Column(
            title=title,
            figures=make_figures([_mean(values, s) for s in sets], nums, "higher"),
        )
        for title, values in columns
    ]


def _mean(values: Sequence[float | None], indices: Sequence[int]) -> float | None:
    numbers = [clip(v) for index in indices if (v := values[index]) is not None]
    return sum(numbers) / len(numbers) if numbers else None


# Verdicts on two sets of seeds.


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    kind: Kind
    finding: str
    needed: str = ""  # how many seeds would tell the sets apart
    # other - base and its interval; None: not measured.
    difference: float | None = None
    interval: tuple[float, float] | None = None
    is_paired: bool = False

    @property
    def text(self) -> str:
        return f"{self.finding}: {self.needed}" if self.needed else self.finding


def judge(
    base: Array, other: Array, *, statistic: str, better: Better, is_paired: bool
) -> Verdict:
    """Judge two sets, [S, 1]: a value of the window for each run; pairs are of
    one row.
    """
    if is_paired:
        there = np.isfinite(base - other)
        base, other = np.where(there, base, np.nan), np.where(there, other, np.nan)
    nums = _count(base), _count(other)
    if 0 in nums:
        return Verdict(kind="none", finding="no values in the window")
    _, interval_of, difference_of = STATISTICS[statistic]
    estimate = (
        interval_of(subtract(other, base)) if is_paired else difference_of(base, other)
    )
    kind, finding = _kind_and_finding(estimate, nums, better)
    needed = ""
    if kind == "open":
        needed = _needed(estimate.value[0], base, other, nums, is_paired=is_paired)
    return Verdict(
        kind=kind,
        finding=finding,
        needed=needed,
        difference=float(estimate.value[0]),
        interval=estimate.interval,
        is_paired=is_paired,
    )


def _count(values: Array) -> int:
    return int(np.isfinite(values).sum())


def _kind_and_finding(
    estimate: Estimate, nums: tuple[int, int], better: Better
) -> tuple[Kind, str]:
    value, low, high = estimate.value[0], estimate.low[0], estimate.high[0]
    if min(nums) == 1:
        whose = "each" if nums == (1, 1) else "on one side"
        return "one", f"one run {whose}: no test"
    if low == high == 0:
        return "same", "equal in every seed"
    if low <= 0 <= high:
        return "open", "not distinguishable yet"
    word = "higher" if value > 0 else "lower"
    if better == "neither":
        return "differs", f"distinguishable: {word}"
    kind: Kind = "better" if word == better else "worse"
    return kind, f"distinguishable: {kind}"


def _needed(
    difference: float,
    base: Array,
    other: Array,
    nums: tuple[int, int],
    *,
    is_paired: bool,
) -> str:
    if is_paired:
        variances = (float(moments(subtract(other, base))[2][0]), 0.0)
    else:
        variances = (float(moments(base)[2][0]), float(moments(other)[2][0]))
    needed = seeds_needed(float(difference), variances, is_paired=is_paired)
    if needed is None:
        return f"more than {MOST_SEEDS:,} more seeds each"
    if nums[0] == nums[1]:
        more = max(1, needed - nums[0])
        return f"about {more} more seed{'s' if more > 1 else ''} each"
    return f"about {max(needed, max(nums) + 1)} seeds each"


# The conclusion: which set is best, by how much, and how sure that is.

LEAST_WINDOW = 5  # steps of which the reward is averaged, where there are as many
MAX_PAIRED = 400  # steps of two runs that are compared one by one
LEAST_PAIRED = 5
MOST_CORRELATED = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """A metric of each set that has it, at the same steps."""

    metric: str
    window: Window
    sets: list[RunSet]
    values: dict[int, float]  # of each run
    margins: dict[int, float | None]  # half of the 95% interval of a run's own value

    def of(self, run_set: RunSet) -> Array:
        """[S, 1]: of each run."""
        return np.array([[self.values[run.pk]] for run in by_seed(run_set)])

    def mean(self, run_set: RunSet) -> float:
        return float(np.nanmean(self.of(run_set)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """`difference` is of `best` to the baseline, or of the next one to `best`, if that
    is the baseline.
    """

    kind: Kind
    text: str
    metric: str = ""
    step: int | None = None
    best: RunSet | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    caveats: list[str] = field(default_factory=list)
    # Two sets with too few seeds to tell them apart.
    few: list[RunSet] = field(default_factory=list)
    # Of runs with different rewards: those to score with the baseline's, which rules
    # are equal in all.
    rescored: list[Run] = field(default_factory=list)
    recipe: RecipeVersion | None = None
    common_rules: list[str] = field(default_factory=list)


def conclude(arrangement: Arrangement, *, window: int | None = None) -> Conclusion:
    """Rank by the held-out reward where all sets have it at one step, else by the
    reward.

    One query for held-out rewards; else two to four.
    """
    if len(arrangement.sets) < 2:
        return Conclusion(kind="none", text="")
    if have_different_rewards(arrangement.settings):
        return _refuse(arrangement)
    scores = _read_scores(arrangement, window)
    left_out: list[str] = []
    if scores is None:
        arrangement, left_out = _narrow(arrangement)
        scores = _read_scores(arrangement, window)
    if scores is None:
        return Conclusion(kind="none", text="These runs share no steps.")
    base = scores.sets[0]
    ranked = sorted(scores.sets, key=lambda run_set: -scores.mean(run_set))
    if len(scores.sets) == 2:
        ours, theirs = scores.sets[1], base
    elif ranked[0] is base:
        ours, theirs = ranked[1], base
    else:
        ours, theirs = ranked[0], base
    verdict = _contrast(theirs, ours, scores)
    assert verdict.difference is not None
    return Conclusion(
        kind=verdict.kind,
        text=_write(arrangement, scores, ranked, (ours, theirs), verdict),
        metric=scores.metric,
        step=scores.window.last,
        best=ranked[0],
        difference=verdict.difference,
        interval=verdict.interval,
        few=[ours, theirs]
        if verdict.kind in ("open", "one") and not (ours.has_band and theirs.has_band)
        else [],
        caveats=_find_caveats(arrangement, scores) + left_out,
    )


def have_different_rewards(settings: Sequence[Setting]) -> bool:
    """Tell whether rules, their combination or a penalty differ: scores do not
    compare.
    """
    parts = ("rules.", "recipe.", "reward.overlong")
    keys = (s.key.removeprefix(f"phases.{s.phase}.") for s in settings if s.differs)
    return any(key.startswith(parts) for key in keys)


def _refuse(arrangement: Arrangement) -> Conclusion:
    base, *others = (run_set.run for run_set in arrangement.sets)
    recipe = base.recipe_version
    names = [
        str(version)
        for version in dict.fromkeys(run.recipe_version for run in arrangement.runs)
        if version
    ]
    are = f"{' and '.join(names)} are different rewards"
    rules = [
        {
            (rule["name"], rule.get("kind"), str(rule.get("params")))
            for rule in run.config["reward"]["recipe"]["rules"]
        }
        for run in arrangement.runs
    ]
    return Conclusion(
        kind="incomparable",
        text=f"Not comparable: {are if len(names) > 1 else 'the rewards differ'}.",
        rescored=[
            run
            for run in others
            if recipe and not run.is_imported and run.recipe_version != recipe
        ],
        recipe=recipe,
        common_rules=sorted(name for name, _, _ in set.intersection(*rules)),
    )


def _read_scores(arrangement: Arrangement, window: int | None) -> Scores | None:
    """Return None if fewer than two sets have a score."""
    scores = _read_held_out(arrangement) or _read_rewards(arrangement, window)
    return scores if scores and len(scores.sets) > 1 else None


def _narrow(arrangement: Arrangement) -> tuple[Arrangement, list[str]]:
    """Keep the most sets whose runs share a step, and say why others are left out.

    The baseline's first step is tried first.
    """
    runs = arrangement.runs
    points = read_drawn(runs, [REWARD], axis="step", most=100, is_aligned=True)[REWARD]
    spans = {
        run.pk: range(int(points[run.pk].steps[0]), int(points[run.pk].steps[-1]) + 1)
        for run in runs
        if len(points[run.pk])
    }
    together = [
        [s for s in arrangement.sets if all(at in spans.get(r.pk, ()) for r in s.runs)]
        for at in (steps.start for steps in spans.values())
    ]
    sets = max(together, key=len, default=[])
    left_out = [
        run
        for run_set in arrangement.sets
        if run_set not in sets
        for run in run_set.runs
    ]
    return replace(arrangement, sets=sets), [
        _leave(run, spans.get(run.pk)) for run in left_out
    ]


def _leave(run: Run, steps: range | None) -> str:
    if steps is None:
        return f"{run.name} has no reward yet: not compared."
    sentence = f"{run.name} has steps {steps[0]:,} to {steps[-1]:,}: not compared."
    if (parent := run.forked_from) is None:
        return sentence
    return f"{sentence} It forks {parent.name}, which is at step {parent.last_step:,}."


def _read_held_out(arrangement: Arrangement) -> Scores | None:
    """Read the scores at the last step at which every run was evaluated on the same
    set, after the first step.
    """
    runs = arrangement.runs
    current = Evaluation.objects.filter(run__in=runs, superseded_by=None, step__gt=0)
    evaluated: dict[str, dict[int, dict[int, dict[str, float | None]]]] = {}
    for pk, name, step, metrics in current.order_by().values_list(
        "run_id", "name", "step", "metrics"
    ):
        mean = metrics.get(f"eval/{name}/mean")
        if mean is not None and math.isfinite(mean):
            evaluated.setdefault(name, {}).setdefault(pk, {})[step] = metrics
    for name in sorted(evaluated, key=lambda name: (name != MAIN_SET, name)):
        by_run = evaluated[name]
        steps = set.intersection(*(set(by_run.get(run.pk, {})) for run in runs))
        if not steps:
            continue
        step, metric = max(steps), f"eval/{name}/mean"
        at = {run.pk: by_run[run.pk][step] for run in runs}
        return Scores(
            metric=metric,
            window=Window(first=step, last=step, num_common=len(steps), shortest=None),
            sets=arrangement.sets,
            values={pk: float(clip(own[metric] or 0.0)) for pk, own in at.items()},
            margins={pk: _margin(own, metric) for pk, own in at.items()},
        )
    return None


def _margin(metrics: dict[str, float | None], metric: str) -> float | None:
    low, high = metrics.get(f"{metric}/low"), metrics.get(f"{metric}/high")
    # JSON's numbers may be whole ones, whose difference is no float.
    return None if low is None or high is None else (clip(high) - clip(low)) / 2


def _read_rewards(arrangement: Arrangement, num_steps: int | None) -> Scores | None:
    """Read each run's mean over the last steps that all runs have made."""
    runs = arrangement.runs
    points = read_drawn(runs, [REWARD], axis="step", most=100, is_aligned=True)[REWARD]
    window = find_window(runs, points, num_steps)
    if window and not num_steps and window.num < LEAST_WINDOW:
        window = find_window(runs, points, LEAST_WINDOW)
    if window is None:
        return None
    means = window_means(runs, REWARD, points, window)
    return Scores(
        metric=REWARD,
        window=window,
        sets=[
            run_set
            for run_set in arrangement.sets
            if any(math.isfinite(means[run.pk]) for run in run_set.runs)
        ],
        values=means,
        margins={},
    )


def _contrast(base: RunSet, other: RunSet, scores: Scores) -> Verdict:
    """Compare several seeds over them; one each over held-out prompts or steps."""
    ours, theirs = scores.of(other), scores.of(base)
    is_paired = can_pair(base, other)
    verdict = judge(theirs, ours, statistic=MEAN, better="higher", is_paired=is_paired)
    if verdict.kind != "one" or not (base.is_single and other.is_single):
        return verdict
    half = (
        _step_margin(base.run, other.run, scores.window)
        if scores.metric == REWARD
        else _joint_margin(scores.margins[base.pk], scores.margins[other.pk])
    )
    difference = verdict.difference
    if half is None or difference is None:
        return verdict
    return Verdict(
        kind="one",
        finding=verdict.finding,
        difference=difference,
        interval=(difference - half, difference + half),
    )


def _joint_margin(ours: float | None, theirs: float | None) -> float | None:
    """Return the margin of the difference of two independent means."""
    return None if ours is None or theirs is None else math.hypot(ours, theirs)


def _step_margin(base: Run, other: Run, window: Window) -> float | None:
    """Return the margin of the mean of the differences at the same steps, which may
    follow each other: n steps with a correlation r count as n (1 - r) / (1 + r).
    """
    num = min(window.num, MAX_PAIRED)
    steps = np.unique(np.linspace(window.first, window.last, num).round().astype(int))
    pair = [base, other]
    read = read_steps(pair, [REWARD], at={run.pk: steps.tolist() for run in pair})
    theirs, ours = (read[run.pk].metrics[REWARD] for run in pair)
    common, i, j = np.intersect1d(ours.steps, theirs.steps, return_indices=True)
    if len(common) < LEAST_PAIRED:
        return None
    differences = clip_all(ours.values[i]) - clip_all(theirs.values[j])
    spread = float(differences.std(ddof=1))
    if spread == 0:
        return 0.0
    centred = differences - differences.mean()
    correlation = float(centred[1:] @ centred[:-1] / (centred @ centred))
    shared = min(max(correlation, 0.0), MOST_CORRELATED)
    effective = max(2.0, len(common) * (1 - shared) / (1 + shared))
    reach = float(t_quantile(0.975, np.array([effective - 1]))[0])
    return reach * spread / math.sqrt(effective)


def _find_caveats(arrangement: Arrangement, scores: Scores) -> list[str]:
    """Say why the scores may not be of the same thing."""
    differing = {setting.key for setting in arrangement.settings if setting.differs}
    caveats = []
    if "dataset" in differing:
        caveats.append("The runs have different datasets.")
    if len(scores.sets) < len(arrangement.sets):
        num = len(arrangement.sets) - len(scores.sets)
        caveats.append(
            f"{num} of {len(arrangement.sets)} have no reward in these steps."
        )
    return caveats


def _write(
    arrangement: Arrangement,
    scores: Scores,
    ranked: list[RunSet],
    pair: tuple[RunSet, RunSet],
    verdict: Verdict,
) -> str:
    """Write one sentence; a second one about the others."""
    ours, theirs = pair
    is_live = any(not run.has_ended for run in arrangement.runs)
    first, last = scores.window.first, scores.window.last
    where = f"over steps {first:,} to {last:,}" if first < last else f"at step {last:,}"
    metric = title_of(scores.metric).removesuffix(" (mean)")
    metric = metric[0].lower() + metric[1:]
    by = verdict.difference or 0.0
    sure = _sure(ours, theirs, verdict, scores)
    lead = f"So far, {where}, " if is_live else ""
    tail = "" if is_live else f" {where}"
    us, them = _name(ours), _name(theirs)
    if len(scores.sets) > 2:
        best = ranked[0]
        highest = f"{lead}{_name(best)} has the highest {metric}{tail}"
        value = _say(scores.mean(best))
        if best is theirs:
            return (
                f"{highest}: {value}. The next, {us}, is {_say(abs(by))} below{sure}."
            )
        chosen = " The best of several is partly luck."
        return (
            f"{highest}: {value}, {_say(abs(by))} above the baseline {them}{sure}."
            f"{chosen}"
        )
    if verdict.kind == "same" or by == 0:
        return f"{lead}{us} and {them} have the same {metric}{tail}{sure}."
    side = "above" if by > 0 else "below"
    difference = f"{us} is {_say(abs(by))} {side} {them}"
    if verdict.interval and verdict.interval[0] <= 0 <= verdict.interval[1]:
        no = "no" if lead else "No"
        return f"{lead}{no} clear difference in {metric}{tail}: {difference}{sure}."
    return f"{lead}{difference} in {metric}{tail}{sure}."


def _name(run_set: RunSet) -> str:
    return run_set.run.name if run_set.is_single else run_set.label


def _sure(ours: RunSet, theirs: RunSet, verdict: Verdict, scores: Scores) -> str:
    """Write in parentheses the interval, of what it is, and whether it may be
    chance.
    """
    nums = [len(theirs.runs), len(ours.runs)]
    parts = []
    # The interval of a few seeds is wider than the score.
    if verdict.interval and not 1 < min(nums) < MIN_BAND:
        low, high = map(_say, verdict.interval)
        over = "steps" if scores.metric == REWARD else "prompts"
        of = f" over {over}" if nums == [1, 1] else ""
        parts.append(f"95% interval{of} {low} to {high}")
    if nums == [1, 1]:
        parts.append("one seed each, may be chance")
    elif 1 in nums:
        parts.append("one seed on one side, may be chance")
    else:
        seeds = str(nums[0]) if nums[0] == nums[1] else f"{nums[0]} and {nums[1]}"
        each = " each" if nums[0] == nums[1] else ""
        parts.append(f"{seeds} seeds{each}{', paired' if verdict.is_paired else ''}")
        if verdict.kind == "open":
            few = min(nums) < MIN_BAND
            parts.append("too few to tell" if few else f"{verdict.needed} to tell")
        elif len(scores.sets) == 2 and verdict.kind != "same":
            parts.append("unlikely to be chance")
    return f" ({'; '.join(parts)})"


def _say(value: float) -> str:
    """Two digits."""
    return sig3(float(f"{value:.2g}"))
