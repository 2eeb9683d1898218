"""The signals that the trainer's metrics and the evaluations tell, of all steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dashboard.insights.audit.series import Series, rate_of
from dashboard.insights.audit.signals import Line, Signal
from dashboard.insights.points import NONE, Points, read_points
from dashboard.insights.statistics import Array
from dashboard.runs.models import REWARD, Evaluation, Run
from trainer.alert_evaluator import REWARDS

LENGTH, ENTROPY, KL = "completion/mean_length", "entropy", "kl/mean"
MOST_SETS = 20
NO_SET = (
    "The run is not evaluated on held-out prompts. Choose a held-out set when you "
    "launch one: without it nobody can tell learning from gaming by the reward alone."
)


def measure(run: Run) -> list[Signal]:
    """A query a metric and one a held-out set, and one for the sets' names."""
    return [*_held_out(run), _length(run), _entropy(run), _kl(run)]


def _points(run: Run, metric: str) -> Points:
    return read_points([run], metric, axis="step")[run.pk]


def _held_out(run: Run) -> Iterator[Signal]:
    names = Evaluation.objects.filter(run=run, superseded_by__isnull=True)
    sets = list(names.order_by("name").values_list("name", flat=True).distinct())
    rewards = _points(run, REWARD) if sets else NONE
    of_all = f" {MOST_SETS} of {len(sets)} sets are shown."
    for name in sets[:MOST_SETS]:
        scores = _points(run, f"eval/{name}/mean")
        training = _beside(rewards, scores)
        yield _gap(
            f"Training reward less {name}",
            key=f"held-out:{name}",
            gap=Series.known(scores.steps, training - scores.values),
            more=of_all if len(sets) > MOST_SETS else "",
            lines=(
                Line(name="training", series=Series.known(scores.steps, training)),
                Line(name=name, series=Series.of(scores)),
            ),
        )
    if not sets:
        yield _gap("Training reward less held-out", key="held-out", missing=NO_SET)


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
        about="Grows where the reward rises on what is trained on, and not on what is "
        f"held out.{more}",
        unit="reward",
        suspect="up",
        series=gap,
        lines=lines,
        missing=missing,
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    )


def _beside(rewards: Points, scores: Points) -> Array:
    """The mean training reward since the evaluation before, of ten steps at most.

    No step counts twice: else each mean would have much of the one before.
    """
    ends = np.searchsorted(rewards.steps, scores.steps, side="right")
    begins = np.maximum(ends - REWARDS, np.append(0, ends[:-1]))
    # Not as differences of running sums, from which one huge reward takes all digits.
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
        about="Drifts where the reward pays for words, or for few of them.",
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
        about="Falls where the policy settles on one way to write.",
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
        about="How quickly the policy leaves the reference; it speeds up where the "
        "reward is no longer held back.",
        unit="nats per token in 100 steps",
        suspect="up",
        series=None if measured is None else rate_of(measured),
        lines=() if measured is None else (Line(name="KL", series=measured),),
        line_unit="nats per token",
        missing=f"The run has not logged {KL}: it has no reference to be compared "
        'with. Set reference.kind to "auto" to have one.',
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    )
