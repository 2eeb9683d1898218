"""The audit of a run: its verdict, signals, example completions and charts."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any, Literal, TypeVar

import plotly.graph_objects as go
from django import forms

from dashboard.analysis.audit.changes import Change, Window, compare_ends, reached
from dashboard.analysis.audit.completions import study
from dashboard.analysis.audit.signals import Signal, read_series, read_signals
from dashboard.analysis.audit.texts import steps_with_groups
from dashboard.analysis.audit.verdict import Verdict, read_verdict
from dashboard.analysis.compare.figures import y_axis
from dashboard.analysis.compare.series import thin
from dashboard.completions.forms import FilterForm
from dashboard.completions.models import Completion, Group
from dashboard.runs.charts.chart import NOTE, figure_tree, has_clipped
from dashboard.runs.headline import draw_spark
from dashboard.runs.models import REWARD, Run
from dashboard.runs.queries import Keyed, as_of

LARGE = 0.8  # effect, as Cohen calls it
LEAST = 0.1  # of the value before: a smaller change is none

Status = Literal["changed", "steady", "few", "missing"]
NUM_EXAMPLES = 10
MOST_STEPS = 200  # among which those of the examples are drawn
MOST_GROUPS = 20_000  # of a side, among which prompts of both are sought
Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
FEW = 60  # points, which are drawn as such


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    signal: Signal
    status: Status
    change: Change | None = None
    step: int | None = None  # by which most of the change has happened

    @property
    def spark(self) -> str:
        series = self.signal.series
        return "" if series is None else draw_spark(series.values.tolist())

    @property
    def num_points(self) -> int:
        return 0 if self.signal.series is None else len(self.signal.series)


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The audit of a run up to `last_step`, and how many completions were read."""

    last_step: int
    verdict: Verdict
    findings: tuple[Finding, ...]
    num_steps: int
    num_chosen: int
    num_between: int
    num_completions: int

    def find(self, key: str) -> Finding | None:
        return next((f for f in self.findings if f.signal.key == key), None)

    def change_of(self, key: str) -> Change | None:
        """Take the change of the verdict's reward, or a signal's."""
        if key == "verdict":
            return self.verdict.reward
        finding = self.find(key)
        return finding.change if finding else None

    def having(self, *statuses: Status) -> list[Finding]:
        return [f for f in self.findings if f.status in statuses]

    @property
    def changed(self) -> list[Finding]:
        return self.having("changed")

    @property
    def steady(self) -> list[Finding]:
        return self.having("steady")

    @property
    def unmeasured(self) -> list[Finding]:
        return self.having("few", "missing")

    @property
    def note(self) -> str:
        series = [f.signal.series for f in self.findings if f.signal.series]
        return NOTE if any(has_clipped(numbers.values) for numbers in series) else ""


def audit(run: Run) -> Audit:
    """Cached until the run finishes another step."""
    return _audit_once(as_of(run, run.last_step, run.state))


# An audit of 100,000 steps takes 5 MB.
@lru_cache(maxsize=16)
def _audit_once(keyed: Keyed[Run]) -> Audit:
    run, studied = keyed.value, study(keyed.value)
    reward = read_series(run, [REWARD]).get(REWARD)
    return Audit(
        last_step=run.last_step,
        verdict=Verdict(why="few")
        if reward is None
        else read_verdict(run, reward, studied.features()),
        findings=tuple(compare(signal) for signal in read_signals(run, studied)),
        num_steps=studied.num_steps,
        num_chosen=studied.num_chosen,
        num_between=studied.num_between,
        num_completions=studied.num_completions,
    )


def compare(signal: Signal) -> Finding:
    """Changed: the interval excludes 0, and it is 10% of the value before at least."""
    if signal.series is None:
        return Finding(signal=signal, status="missing")
    change = compare_ends(signal.series)
    if change is None:
        return Finding(signal=signal, status="few")
    is_large = abs(change.difference) >= LEAST * abs(change.before.mean)
    if not (change.is_clear and is_large):
        return Finding(signal=signal, status="steady", change=change)
    return Finding(
        signal=signal,
        status="changed",
        change=change,
        step=reached(signal.series, change),
    )


# Examples from before and after a change.


def draw_examples(run: Run, window: Window) -> list[Completion]:
    """Ten completions of the window's steps, or all; ordered by step. Four queries.

    They are drawn at random with a fixed seed, from as many steps and groups as
    possible, so everyone sees the same ones.
    """
    chance = random.Random(f"{run.pk} {window.first} {window.last}")  # noqa: S311 - which ones are shown is no secret
    steps = steps_with_groups(
        run, first=window.first, last=window.last, most=MOST_STEPS
    )
    steps = chance.sample(steps, min(NUM_EXAMPLES, len(steps)))
    of_steps = Group.objects.current().filter(run=run, step__in=steps)
    groups = Group.objects.filter(
        pk__in=_deal(of_steps.order_by("id").values_list("step", "pk"), chance)
    ).prefetch_related("packed_completions")
    ordered = groups.order_by("pk")
    return sorted(
        _deal(((group.pk, c) for group in ordered for c in group.completions), chance),
        key=lambda c: (c.group.step, c.group.prompt_index, c.position),
    )


def draw_pairs(
    run: Run, before: Window, after: Window
) -> tuple[list[Completion], list[Completion]] | None:
    """Draw a completion a side of ten prompts that were sampled on both; by prompt.

    None: fewer prompts were. Six queries; the same ones for everyone.
    """
    chance = random.Random(f"{run.pk} {before.last} {after.last}")  # noqa: S311 - as above
    groups = Group.objects.current().filter(run=run)
    sides: list[dict[int, int]] = []
    for window in (before, after):
        completion = groups.filter(step__range=(window.first, window.last)).order_by(
            "-step"
        )
        # Of a prompt that was sampled more often, the group of the earliest step.
        sides.append(dict(completion.values_list("prompt_index", "pk")[:MOST_GROUPS]))
    shared = sorted(sides[0].keys() & sides[1].keys())
    if len(shared) < NUM_EXAMPLES:
        return None
    prompts = chance.sample(shared, NUM_EXAMPLES)
    ours, theirs = (
        _draw_one_each([side[prompt] for prompt in prompts], chance) for side in sides
    )
    # Completions may have been deleted by the team's retention.
    return (ours, theirs) if len(ours) == len(theirs) == NUM_EXAMPLES else None


def _draw_one_each(ids: Sequence[int], chance: random.Random) -> list[Completion]:
    ordered = (
        Group.objects.filter(pk__in=ids)
        .prefetch_related("packed_completions")
        .order_by("prompt_index")
    )
    return [chance.choice(own) for group in ordered if (own := group.completions)]


def _deal(pairs: Iterable[tuple[Key, T]], chance: random.Random) -> list[T]:
    """Up to ten values: one of each key in turn, in random order."""
    by_key: dict[Key, list[T]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    hands = list(by_key.values())
    chance.shuffle(hands)
    for hand in hands:
        chance.shuffle(hand)
    rounds = (completion for turn in zip_longest(*hands) for completion in turn)
    return list(
        islice(
            (completion for completion in rounds if completion is not None),
            NUM_EXAMPLES,
        )
    )


# Charts.


def draw(finding: Finding) -> dict[str, Any] | None:
    signal = finding.signal
    if signal.series is None or finding.change is None:
        return None
    figure = figure_tree(
        [
            go.Scatter(
                name=signal.title,
                mode="lines+markers" if len(signal.series) <= FEW else "lines",
                line={"color": "var(--cohort-series-1)", "width": 2},
                marker={"size": 4},
            )
        ],
        xaxis={"title": {"text": "step"}},
        yaxis=y_axis(signal.unit, tickformat=".0%", rangemode="tozero")
        if signal.is_share
        else y_axis(signal.unit),
        hovermode="x unified",
        showlegend=False,
        shapes=[
            _band(finding.change.before, "quiet"),
            _band(finding.change.after, "series-3"),
        ],
    )
    # Points go in last: Plotly would check and copy each of them.
    (trace,) = figure["data"]
    drawn = thin(signal.series.values, signal.series.values)
    trace["x"] = signal.series.steps[drawn].tolist()
    trace["y"] = [float(f"{v:.6g}") for v in signal.series.values[drawn].tolist()]
    trace["hovertemplate"] = "%{y:.3~p}" if signal.is_share else "%{y:.3~g}"
    return figure


def _band(window: Window, colour: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "layer": "below",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": window.first,
        "x1": window.last,
        "opacity": 0.18,
        "line": {"width": 0},
        "fillcolor": f"var(--cohort-{colour})",
    }


class AuditForm(FilterForm):
    """The step around which completions are compared."""

    at = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
