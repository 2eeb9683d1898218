"""What else changes while a model learns: signals, each as a series."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dashboard.analysis.audit.completions import Study
from dashboard.runs.charts.chart import clip_all
from dashboard.runs.charts.series import Series, read_steps
from dashboard.runs.models import Run

LENGTH, ENTROPY, KL = "completion/mean_length", "entropy", "kl/mean"
NO_TEXTS = "No completions of this run are stored."


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    key: str  # of its address
    title: str
    about: str  # one sentence
    unit: str  # what the values are
    missing: str  # why there is no series, and what to do about it
    browse: str  # the Completions tab's query
    browse_words: str  # what that tab shows
    metric: str = ""  # else it is measured in completions
    is_share: bool = False  # shown in %
    series: Series | None = None


SIGNALS = (
    Signal(
        key="length",
        title="Length",
        about="Changes when the reward favours long or short completions, and when "
        "the model learns to reason.",
        unit="tokens",
        metric=LENGTH,
        missing=f"The run has not logged {LENGTH}.",
        browse="sort=-length",
        browse_words="longest first",
    ),
    Signal(
        key="entropy",
        title="Entropy",
        about="Falls when the policy becomes certain, or collapses to a mode.",
        unit="nats per token",
        metric=ENTROPY,
        missing=f"The run has not logged {ENTROPY}.",
        browse="surprise=near",
        browse_words="near-duplicates only",
    ),
    Signal(
        key="kl",
        title="KL to the reference",
        about="How far the policy has moved from the reference.",
        unit="nats per token",
        metric=KL,
        missing=f"The run has not logged {KL}, because it has no reference model. Set "
        "reference.kind to “auto” to use one.",
        browse="sort=-reward",
        browse_words="highest reward first",
    ),
    Signal(
        key="duplicates",
        title="Near-duplicates within groups",
        about="Completions that nearly repeat another completion of their group.",
        unit="share of completions",
        is_share=True,
        missing=NO_TEXTS,
        browse="surprise=near",
        browse_words="near-duplicates only",
    ),
    Signal(
        key="repetition",
        title="Repetition within a completion",
        about="Phrases of four words, numbers or marks that a completion repeats, as "
        "in a loop.",
        unit="share of a completion's phrases",
        is_share=True,
        missing="Requires completions of at least four words, numbers or marks.",
        browse="sort=-length",
        browse_words="longest first",
    ),
)


def read_signals(run: Run, study: Study) -> list[Signal]:
    """Read the series of each signal; one query."""
    measured = read_series(run, [signal.metric for signal in SIGNALS if signal.metric])
    return [
        replace(signal, series=measured.get(signal.metric))
        if signal.metric
        else replace(signal, series=study.series(signal.key) or None)
        if study.texts
        else replace(signal, missing=NO_TEXTS)
        for signal in SIGNALS
    ]


def read_series(
    run: Run, metrics: Sequence[str], *, at: Collection[int] | None = None
) -> dict[str, Series]:
    """Read those that have values, clipped; of chosen steps, or of all. One query."""
    chosen = None if at is None else {run.pk: at}
    read = read_steps([run], metrics, at=chosen)[run.pk].metrics
    return {
        name: Series(steps=series.steps, values=clip_all(series.values))
        for name, series in read.items()
        if len(series)
    }
