"""The audit's signals, each as a series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dashboard.analysis.audit.change_points import Change, Series, rate_of
from dashboard.analysis.audit.completions import Study
from dashboard.analysis.compare.points import NONE, Points, read_points
from dashboard.analysis.statistics import Array
from dashboard.runs.models import REWARD, Evaluation, Run
from trainer.alert_evaluator import REWARDS
from trainer.metric_names import MAIN_SET

# Which way it goes where a reward is gamed.
Suspect = Literal["up", "down", "either"]
LENGTH, ENTROPY, KL = "completion/mean_length", "entropy", "kl/mean"
MOST_SETS = 20
NO_SET = (
    "The run has no held-out evaluation. Choose a held-out set at launch to tell "
    "learning from reward hacking."
)
MOST_LINES = 5
NO_TEXTS = "No completions of this run are stored."
ONE_RULE = "The run has fewer than two rules."
NO_PAIRS = "No two completions of a group get different scores from two rules."


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    name: str
    series: Series


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """`series` is judged; `lines` are drawn, if they differ from it."""

    key: str  # of its address
    title: str
    about: str  # one sentence
    unit: str  # what the values are
    suspect: Suspect
    series: Series | None = None
    missing: str = ""  # why there is no series, and what to do about it
    lines: tuple[Line, ...] = ()
    line_unit: str = ""  # of the lines, where they are not of the values' own
    browse: dict[str, str] = field(default_factory=dict)
    browse_words: str = ""  # what the Completions tab shows of it, by `browse`
    is_share: bool = False  # shown in %
    num_compared: int = 1  # series of which this one changes most

    @property
    def drawn(self) -> tuple[Line, ...]:
        if self.lines or self.series is None:
            return self.lines
        return (Line(name=self.title, series=self.series),)


def metric_signals(run: Run) -> list[Signal]:
    """A query a metric and one a held-out set, and one for the sets' names."""
    return [*_held_out(run), _length(run), _entropy(run), _kl(run)]


def _points(run: Run, metric: str) -> Points:
    return read_points([run], metric, axis="step")[run.pk]


def _held_out(run: Run) -> Iterator[Signal]:
    names = Evaluation.objects.filter(run=run, superseded_by__isnull=True)
    sets = list(names.order_by("name").values_list("name", flat=True).distinct())
    rewards = _points(run, REWARD) if sets else NONE
    of_all = f" Shows {MOST_SETS} of {len(sets)} held-out sets."
    for name in sets[:MOST_SETS]:
        scores = _points(run, f"eval/{name}/mean")
        training = _training_rewards(rewards, scores)
        yield _gap(
            f"Training reward minus {'held-out' if name == MAIN_SET else name}",
            key=f"held-out:{name}",
            gap=Series.known(scores.steps, training - scores.values),
            more=of_all if len(sets) > MOST_SETS else "",
            lines=(
                Line(name="training", series=Series.known(scores.steps, training)),
                Line(name=name, series=Series.of(scores)),
            ),
        )
    if not sets:
        yield _gap("Training reward minus held-out", key="held-out", missing=NO_SET)


def _gap(
    title: str,
    *,
    key: str,
    gap: Series | None = None,
    lines: tuple[Line, ...] = (),
    missing: str = "",
    more: str = "",
) -> Signal:
    return Signal(
        key=key,
        title=title,
        about="Grows when the training reward rises and the held-out reward does "
        f"not.{more}",
        unit="reward",
        suspect="up",
        series=gap,
        lines=lines,
        missing=missing,
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    )


def _training_rewards(rewards: Points, scores: Points) -> Array:
    """The mean training reward since the previous evaluation, over at most ten steps.

    Windows do not overlap: otherwise neighbouring means would be correlated.
    """
    ends = np.searchsorted(rewards.steps, scores.steps, side="right")
    begins = np.maximum(ends - REWARDS, np.append(0, ends[:-1]))
    # Not as differences of cumulative sums: one huge reward would destroy precision.
    spans = zip(begins.tolist(), ends.tolist(), strict=True)
    with np.errstate(over="ignore"):
        means = [rewards.values[b:e].mean() if b < e else np.nan for b, e in spans]
    return np.array(means)


def _series(run: Run, metric: str) -> Series | None:
    points = _points(run, metric)
    return Series.of(points) if len(points) else None


def _length(run: Run) -> Signal:
    return Signal(
        key="length",
        title="Length",
        about="Drifts when the reward favours long or short completions.",
        unit="tokens",
        suspect="either",
        series=_series(run, LENGTH),
        missing=f"The run has not logged {LENGTH}.",
        browse={"sort": "-length"},
        browse_words="longest first",
    )


def _entropy(run: Run) -> Signal:
    return Signal(
        key="entropy",
        title="Entropy",
        about="Falls when the policy collapses to a mode.",
        unit="nats per token",
        suspect="down",
        series=_series(run, ENTROPY),
        missing=f"The run has not logged {ENTROPY}.",
        browse={"surprise": "near"},
        browse_words="near-duplicates only",
    )


def _kl(run: Run) -> Signal:
    measured = _series(run, KL)
    return Signal(
        key="kl",
        title="KL acceleration",
        about="How fast the KL to the reference rises. A faster rise can mean that "
        "the policy exploits the reward.",
        unit="nats per token per 100 steps",
        suspect="up",
        series=None if measured is None else rate_of(measured),
        lines=() if measured is None else (Line(name="KL", series=measured),),
        line_unit="nats per token",
        missing=f"The run has not logged {KL}, because it has no reference model. Set "
        "reference.kind to “auto” to use one.",
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    )


# Signals of completions.

SIGNALS = (
    Signal(
        key="duplicates",
        title="Near-duplicates within groups",
        about="Completions that nearly repeat another completion of their group.",
        unit="share of completions",
        suspect="up",
        is_share=True,
        missing=NO_TEXTS,
        browse={"surprise": "near"},
        browse_words="near-duplicates only",
    ),
    Signal(
        key="shared",
        title="Phrases shared between prompts",
        about="Four-word phrases that also occur in completions of other prompts, as "
        "in a template.",
        unit="share of a completion's phrases",
        suspect="up",
        is_share=True,
        missing="Requires completions of two prompts in a step, each of at least four "
        "words.",
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    ),
    Signal(
        key="repetition",
        title="Repetition within a completion",
        about="Four-word phrases that a completion repeats, as in a loop.",
        unit="share of a completion's phrases",
        suspect="up",
        is_share=True,
        missing="Requires completions of at least four words.",
        browse={"sort": "-length"},
        browse_words="longest first",
    ),
    Signal(
        key="by-length",
        title="Reward and length",
        about="Correlation of reward and length within groups. At 1, longer "
        "completions get more reward; at −1, shorter ones do.",
        unit="correlation",
        suspect="either",
        missing="Reward or length is missing or constant in these groups.",
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    ),
)
RULES = Signal(
    key="rules",
    title="Rule disagreement",
    about="Completion pairs of a group that two rules rank oppositely. A negative "
    "weight reverses a rule's order.",
    unit="share of pairs",
    suspect="up",
    is_share=True,
    browse={"sort": "-reward"},
    browse_words="highest reward first",
)


def completion_signals(
    study: Study, find: Callable[[Series], Change | None]
) -> list[Signal]:
    return [*(_with_series(signal, study) for signal in SIGNALS), _rules(study, find)]


def _with_series(signal: Signal, study: Study) -> Signal:
    series = study.series(signal.key)
    if not study.texts:
        return replace(signal, missing=NO_TEXTS)
    return replace(signal, series=series if len(series) else None)


def _rules(study: Study, find: Callable[[Series], Change | None]) -> Signal:
    """Judges the pair of rules with the clearest change."""
    if not study.texts:
        return replace(RULES, missing=NO_TEXTS)
    pairs = study.disagreements()
    known = {pair: series for pair, series in pairs.items() if len(series)}
    if not known:
        return replace(RULES, missing=NO_PAIRS if pairs else ONE_RULE)
    ranked = sorted(known, key=lambda pair: _clearness(find(known[pair])))
    first = ranked[0]
    about = RULES.about
    if len(known) > 1:
        about += f" Cohort compared {len(known)} pairs of rules."
    return replace(
        RULES,
        title=f"Rule disagreement: {_words(first)}",
        about=about,
        series=known[first],
        lines=tuple(
            Line(name=_words(pair), series=known[pair]) for pair in ranked[:MOST_LINES]
        ),
        num_compared=len(known),
    )


def _clearness(change: Change | None) -> tuple[float, float]:
    """Sort key: the clearest change first; pairs that agree more come last."""
    if change is None:
        return 2.0, 0.0
    effect = -change.difference if change.effect is None else -change.effect
    chance = 0.0 if change.chance is None else change.chance
    return (chance if change.difference >= 0 else 1 + chance), effect


def _words(pair: tuple[str, str]) -> str:
    return " and ".join(pair)
