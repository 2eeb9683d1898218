"""The audit of a run: signals, changes, example completions and charts."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, zip_longest
from typing import Any, Literal, TypeVar

import plotly.graph_objects as go
from django import forms

from dashboard.analysis.audit.change_points import FEWEST, Change, Window, find_change
from dashboard.analysis.audit.completions import Study, study
from dashboard.analysis.audit.signals import (
    Line,
    Signal,
    completion_signals,
    metric_signals,
)
from dashboard.analysis.audit.texts import Phrase, risen_phrases, steps_with_groups
from dashboard.analysis.compare.figures import escape_label, y_axis
from dashboard.analysis.compare.series import thin
from dashboard.runs.charts.chart import NOTE, figure_tree, has_clipped
from dashboard.runs.headline import draw_spark
from dashboard.runs.models import Run
from dashboard.runs.queries import Keyed, as_of
from dashboard.samples.forms import FilterForm
from dashboard.samples.models import Completion, Group

CLEAR = 0.01  # chance
LARGE = 0.8  # effect, as Cohen calls it

# suspect: as where a reward is gamed; otherwise: clear as well, but the other way.
Status = Literal["suspect", "otherwise", "steady", "few", "aside", "missing"]
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
    chance: float | None = None  # of the change's, for as many series as were tried

    @property
    def has_interval(self) -> bool:
        """Whether the interval is shown: only for a clear change or a chosen step."""
        is_clear = self.status in ("suspect", "otherwise")
        return self.change is not None and (is_clear or self.chance is None)

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
    findings: tuple[Finding, ...]
    phrases: tuple[Phrase, ...]
    num_steps: int
    num_chosen: int
    num_between: int
    num_completions: int

    def find(self, key: str) -> Finding | None:
        return next((f for f in self.findings if f.signal.key == key), None)

    @property
    def measured(self) -> list[Finding]:
        """Those with a change to show, the suspicious ones first."""
        changed = [f for f in self.findings if f.change is not None]
        return sorted(changed, key=lambda finding: finding.status != "suspect")

    @property
    def unmeasured(self) -> list[Finding]:
        return [f for f in self.findings if f.change is None]

    @property
    def num_suspect(self) -> int:
        return sum(finding.status == "suspect" for finding in self.findings)

    @property
    def note(self) -> str:
        series = [f.signal.series for f in self.findings if f.signal.series]
        return NOTE if any(has_clipped(each.values) for each in series) else ""

    @property
    def num_judged(self) -> int:
        judged = ("suspect", "otherwise", "steady")
        return sum(finding.status in judged for finding in self.findings)


def audit(run: Run, *, at: int | None = None, width: int | None = None) -> Audit:
    """Cached until the run finishes another step."""
    return _audit_once(as_of(run, run.last_step, run.state), at, width)


# An audit of 100,000 steps takes 5 MB.
@lru_cache(maxsize=16)
def _audit_once(keyed: Keyed[Run], at: int | None, width: int | None) -> Audit:
    find = partial(find_change, at=at, width=width)
    run, studied = keyed.value, study(keyed.value)
    signals = [*metric_signals(run), *completion_signals(studied, find)]
    findings = tuple(
        judge(signal, None if signal.series is None else find(signal.series))
        for signal in signals
    )
    return Audit(
        last_step=run.last_step,
        findings=findings,
        phrases=tuple(_phrases(studied, findings)),
        num_steps=studied.num_steps,
        num_chosen=studied.num_chosen,
        num_between=studied.num_between,
        num_completions=studied.num_completions,
    )


def judge(signal: Signal, change: Change | None) -> Finding:
    """A change is clear if p < 0.01 and the effect is at least 0.8.

    At a step that the reader chose, the interval must exclude 0 instead of the p-value.
    """
    if signal.series is None:
        return Finding(signal=signal, status="missing")
    if change is None:
        is_few = len(signal.series) < FEWEST
        return Finding(signal=signal, status="few" if is_few else "aside")
    chance = change.chance
    if chance is not None:
        chance = min(1.0, chance * signal.num_compared)
    return Finding(
        signal=signal,
        status=_status(signal, change, chance),
        change=change,
        chance=chance,
    )


def _status(signal: Signal, change: Change, chance: float | None) -> Status:
    excludes_zero = not change.low <= 0 <= change.high
    is_clear = excludes_zero if chance is None else chance < CLEAR
    is_large = change.effect is None or abs(change.effect) >= LARGE
    if not (is_clear and is_large) or change.difference == 0:
        return "steady"
    went = "up" if change.difference > 0 else "down"
    return "suspect" if signal.suspect in (went, "either") else "otherwise"


def _phrases(studied: Study, findings: Sequence[Finding]) -> list[Phrase]:
    """Phrases that became more common at the clearest change of shared phrases."""
    change = next(f.change for f in findings if f.signal.key == "shared")
    if change is None:
        return []
    before = studied.texts_of(change.before.first, change.before.last)
    after = studied.texts_of(change.after.first, change.after.last)
    return risen_phrases(before, after, studied.vocabulary)


# Examples from before and after a change.


def draw_examples(run: Run, window: Window) -> list[Completion]:
    """Ten completions of the window's steps, or all; ordered by step. Four queries.

    They are drawn at random with a fixed seed, from as many steps and groups as
    possible, so everyone sees the same ones.
    """
    seed = f"{run.pk} {window.first} {window.last}"
    chance = random.Random(seed)  # noqa: S311 - which ones are shown is no secret
    steps = steps_with_groups(
        run, first=window.first, last=window.last, most=MOST_STEPS
    )
    steps = chance.sample(steps, min(NUM_EXAMPLES, len(steps)))
    of_steps = Group.objects.current().filter(run=run, step__in=steps)
    ids = _deal(of_steps.order_by("id").values_list("step", "pk"), chance)
    groups = Group.objects.filter(pk__in=ids).prefetch_related("packed_completions")
    ordered = groups.order_by("pk")
    drawn = _deal(
        ((group.pk, c) for group in ordered for c in group.completions), chance
    )
    return sorted(drawn, key=lambda c: (c.group.step, c.group.prompt_index, c.position))


def draw_pairs(
    run: Run, before: Window, after: Window
) -> tuple[list[Completion], list[Completion]] | None:
    """One completion a side of ten prompts that were sampled on both; by prompt.

    None: fewer prompts were. Six queries; the same ones for everyone.
    """
    chance = random.Random(f"{run.pk} {before.last} {after.last}")  # noqa: S311 - as above
    groups = Group.objects.current().filter(run=run)
    sides: list[dict[int, int]] = []
    for window in (before, after):
        found = groups.filter(step__range=(window.first, window.last)).order_by("-step")
        # Of a prompt that was sampled more often, the group of the earliest step.
        sides.append(dict(found.values_list("prompt_index", "pk")[:MOST_GROUPS]))
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
    groups = Group.objects.filter(pk__in=ids).prefetch_related("packed_completions")
    ordered = groups.order_by("prompt_index")
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
    rounds = (each for turn in zip_longest(*hands) for each in turn)
    return list(islice((each for each in rounds if each is not None), NUM_EXAMPLES))


# Charts.


def draw(finding: Finding) -> dict[str, Any] | None:
    signal = finding.signal
    lines = [line for line in signal.drawn if len(line.series)]
    if not lines:
        return None
    title = signal.line_unit or signal.unit
    figure = figure_tree(
        [_line(line, colour) for colour, line in enumerate(lines, 1)],
        xaxis={"title": {"text": "step"}},
        yaxis=y_axis(title, tickformat=".0%", rangemode="tozero")
        if signal.is_share
        else y_axis(title),
        hovermode="x unified",
        showlegend=len(lines) > 1,
        shapes=_shapes(finding.change) if finding.change else [],
    )
    # Points go in last: Plotly would check and copy each of them.
    for trace, line in zip(figure["data"], lines, strict=True):
        drawn = thin(line.series.values, line.series.values)
        trace["x"] = line.series.steps[drawn].tolist()
        trace["y"] = [float(f"{v:.6g}") for v in line.series.values[drawn].tolist()]
        trace["hovertemplate"] = "%{y:.3~p}" if signal.is_share else "%{y:.4~g}"
    return figure


def _line(line: Line, colour: int) -> go.Scatter:
    return go.Scatter(
        name=escape_label(line.name),
        mode="lines+markers" if len(line.series) <= FEW else "lines",
        line={"color": f"var(--cohort-series-{colour})", "width": 2},
        marker={"size": 4},
    )


def _shapes(change: Change) -> list[dict[str, Any]]:
    return [
        _band(change.before, "quiet"),
        _band(change.after, "series-3"),
        {
            "type": "line",
            "layer": "below",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": change.step,
            "x1": change.step,
            "line": {"color": "var(--cohort-text)", "width": 1, "dash": "dot"},
        },
    ]


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
    """The step at which the audit compares, and the points on each side."""

    at = forms.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, label="Compare around step"
    )
    width = forms.IntegerField(
        required=False, min_value=3, max_value=100_000, label="Points on each side"
    )
