"""What a study says, as signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dashboard.insights.audit.changes import Change
from dashboard.insights.audit.series import Series
from dashboard.insights.audit.signals import Line, Signal
from dashboard.insights.audit.studied import Study

MOST_LINES = 5
NO_TEXTS = "No completions of this run are stored."
SIGNALS = (
    Signal(
        key="duplicates",
        title="Near-duplicates within groups",
        about="Completions nearly like another one of their group.",
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
        about="Four words in a row that stand in answers to other prompts too, as a "
        "template does.",
        unit="share of a completion's phrases",
        suspect="up",
        is_share=True,
        missing="It takes completions of two prompts at a step, each of four words.",
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    ),
    Signal(
        key="repetition",
        title="Repetition within a completion",
        about="Four words in a row that the completion has said before, as in a loop.",
        unit="share of a completion's phrases",
        suspect="up",
        is_share=True,
        missing="It takes completions of four words.",
        browse={"sort": "-length"},
        browse_words="longest first",
    ),
    Signal(
        key="by-length",
        title="Reward goes with length",
        about="Correlation of reward and length within groups: at 1 the longest win, "
        "at −1 the shortest.",
        unit="correlation",
        suspect="either",
        missing="Within the groups that were read, reward or length is not known "
        "or does not vary.",
        browse={"sort": "-reward"},
        browse_words="highest reward first",
    ),
)
RULES = Signal(
    key="rules",
    title="Rules disagree",
    about="Pairs of completions within a group that one rule orders one way, and the "
    "other rule the other way; a weight below 0 turns its rule's order round.",
    unit="share of pairs",
    suspect="up",
    is_share=True,
    browse={"sort": "-reward"},
    browse_words="highest reward first",
)
ONE_RULE = "The run has no two rules, which could disagree."
NEVER_APART = "No two completions of a group are told apart by two rules at once."


def tell(study: Study, find: Callable[[Series], Change | None]) -> list[Signal]:
    return [*(_told(signal, study) for signal in SIGNALS), _rules(study, find)]


def _told(signal: Signal, study: Study) -> Signal:
    series = study.series(signal.key)
    if not study.texts:
        return replace(signal, missing=NO_TEXTS)
    return replace(signal, series=series if len(series) else None)


def _rules(study: Study, find: Callable[[Series], Change | None]) -> Signal:
    """Of all pairs of rules the one that comes apart most clearly is judged."""
    if not study.texts:
        return replace(RULES, missing=NO_TEXTS)
    pairs = study.disagreements()
    known = {pair: series for pair, series in pairs.items() if len(series)}
    if not known:
        return replace(RULES, missing=NEVER_APART if pairs else ONE_RULE)
    ranked = sorted(known, key=lambda pair: _clearness(find(known[pair])))
    first = ranked[0]
    told = f" {len(known)} pairs of rules were looked at." if len(known) > 1 else ""
    return replace(
        RULES,
        title=f"Rules disagree: {_words(first)}",
        about=RULES.about + told,
        series=known[first],
        lines=tuple(
            Line(name=_words(pair), series=known[pair]) for pair in ranked[:MOST_LINES]
        ),
        num_tried=len(known),
    )


def _clearness(change: Change | None) -> tuple[float, float]:
    """The clearest first, and those that agree more and more behind all others."""
    if change is None:
        return 2.0, 0.0
    effect = -change.difference if change.effect is None else -change.effect
    chance = 0.0 if change.chance is None else change.chance
    return (chance if change.difference >= 0 else 1 + chance), effect


def _words(pair: tuple[str, str]) -> str:
    return " and ".join(pair)
