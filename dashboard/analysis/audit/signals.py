"""What else changes while a model learns: signals, each as a series."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dashboard.analysis.audit.completions import Study
from dashboard.analysis.compare.points import read_points
from dashboard.runs.charts.series import Series
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
    browse: dict[str, str]
    browse_words: str  # what the Completions tab shows of it, by `browse`
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
        browse={"sort": "-length"},
        browse_words="longest first",
    ),
    Signal(
        key="entropy",
        title="Entropy",
        about="Falls when the policy becomes certain, or collapses to a mode.",
        unit="nats per token",
        metric=ENTROPY,
        missing=f"The run has not logged {ENTROPY}.",
        browse={"surprise": "near"},
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
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    ),
    Signal(
        key="duplicates",
        title="Near-duplicates within groups",
        about="Completions that nearly repeat another completion of their group.",
        unit="share of completions",
        is_share=True,
        missing=NO_TEXTS,
        browse={"surprise": "near"},
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
        browse={"sort": "-length"},
        browse_words="longest first",
    ),
)


def read_signals(run: Run, study: Study) -> list[Signal]:
    """A query for each metric."""
    return [_read(signal, run, study) for signal in SIGNALS]


def _read(signal: Signal, run: Run, study: Study) -> Signal:
    if signal.metric:
        return replace(signal, series=read_series(run, signal.metric))
    if not study.texts:
        return replace(signal, missing=NO_TEXTS)
    series = study.series(signal.key)
    return replace(signal, series=series if len(series) else None)


def read_series(run: Run, metric: str) -> Series | None:
    points = read_points([run], metric, axis="step")[run.pk]
    return points if len(points) else None
