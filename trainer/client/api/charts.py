"""Which charts a figure of a run has: those of Cohort's overview that have values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

# Of both themes; series are numbered from 1.
LIGHT = {
    "series": "#0b62c4 #c4530b #0b7f73 #8a35c2 #7d6100 "
    "#c02a75 #3d7326 #00769c #5a4fcf #4a5563",
    "right": "#0b7268",
    "wrong": "#b5480b",
    "mixed": "#7a2bbd",
    "tied": "#56616e",
    "text": "#1d2733",
    "quiet": "#54606e",
    "grid": "#e6e9ed",
    "surface": "#fff",
}
DARK = {
    "series": "#6aa9ff #ff9d5c #3fd0bd #c79bff #e0bd4c "
    "#ff8cc6 #93cf74 #5cc8ea #a9a1ff #b4bfcd",
    "right": "#3fd0bd",
    "wrong": "#ff9f5f",
    "mixed": "#cba0ff",
    "tied": "#a9b4c0",
    "text": "#e4e9ef",
    "quiet": "#a3afbc",
    "grid": "#28313b",
    "surface": "#171e26",
}
RULE = re.compile(r"reward/([^/]+)/mean")
SCORE = re.compile(r"eval/([^/]+)/(mean|pass@\d+|maj@(?!1$)\d+)")
STILL = re.compile(r"^(eval|total)/|/weight$|^(lr|kl/coef|staleness/mean)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A sum of metrics, each times its factor, plus a constant."""

    name: str
    color: str  # "1" to "10" of the series, or a colour's name
    terms: tuple[tuple[str, float], ...]
    constant: float = 0.0
    is_layer: bool = False  # of a stack

    @property
    def is_still(self) -> bool:
        return STILL.search(self.terms[0][0]) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    y: str
    lines: tuple[Line, ...]
    spread: str = ""  # a metric, drawn around the first line
    is_share: bool = False


def charts_of(known: Collection[str]) -> list[Chart]:
    """Those whose metrics the run has, in the order of its page."""
    has = frozenset(known)
    shown = [one for one in _charts(known) if one.lines]
    return [one for one in shown if all(_metrics(line) <= has for line in one.lines)]


def chart_of(metric: str) -> Chart:
    return Chart(title=metric, y="", lines=(_line(metric),))


def metrics_of(charts: Sequence[Chart]) -> list[str]:
    """All that they draw."""
    lines = [line for chart in charts for line in chart.lines]
    spreads = [chart.spread for chart in charts if chart.spread]
    terms = [name for line in lines for name, _ in line.terms]
    return list(dict.fromkeys([*terms, *spreads]))


def _charts(known: Collection[str]) -> Iterator[Chart]:
    spread = "reward/std" if "reward/std" in known else ""
    mean = _line("reward/mean")
    yield Chart(title="reward/mean", y="reward", lines=(mean,), spread=spread)
    yield Chart(title="reward/<rule>/mean", y="score", lines=_rules(known))
    yield from _held_out(known)
    yield Chart(
        title="group/frac_…", y="share of groups", lines=_shares(), is_share=True
    )
    yield _one("group/std_mean", "reward")
    yield _one("kl/mean", "nats per token")
    yield _one("kl/coef", "weight")
    yield _one("entropy", "nats per token")
    clip = (_line("clip/frac_low", "2"), _line("clip/frac_high"))
    yield Chart(title="clip/frac_…", y="share", lines=clip)
    yield _one("grad_norm", "norm")
    yield _one("completion/mean_length", "tokens")
    yield _one("completion/frac_truncated", "share")
    yield _one("tokens_per_second", "tokens per second")
    yield _one("time/step", "seconds")


def _one(metric: str, y: str) -> Chart:
    return Chart(title=metric, y=y, lines=(_line(metric),))


def _line(metric: str, color: str = "1", *, name: str = "") -> Line:
    return Line(name=name or metric, color=color, terms=((metric, 1.0),))


def _rules(known: Collection[str]) -> tuple[Line, ...]:
    found = [(name, of[1]) for name in known if (of := RULE.fullmatch(name))]
    return tuple(
        _line(metric, _nth(place), name=rule)
        for place, (metric, rule) in enumerate(found)
    )


def _held_out(known: Collection[str]) -> Iterator[Chart]:
    scores = [(name, of[1], of[2]) for name in known if (of := SCORE.fullmatch(name))]
    for one in dict.fromkeys(held_out for _, held_out, _ in scores):
        own = [(name, score) for name, held_out, score in scores if held_out == one]
        lines = tuple(
            _line(metric, _nth(place), name=score)
            for place, (metric, score) in enumerate(own)
        )
        yield Chart(title=f"eval/{one}/…", y="score", lines=lines)


def _nth(place: int) -> str:
    return str(place % 10 + 1)


def _shares() -> tuple[Line, ...]:
    constant, right, wrong = (
        f"group/frac_{name}" for name in ("zero_std", "all_max", "all_min")
    )
    parts: list[tuple[str, str, tuple[tuple[str, float], ...], float]] = [
        ("▲ all right", "right", ((right, 1.0),), 0.0),
        ("◆ mixed", "mixed", ((constant, -1.0),), 1.0),
        (
            "= tied, unscorable",
            "tied",
            ((constant, 1.0), (right, -1.0), (wrong, -1.0)),
            0.0,
        ),
        ("▼ all wrong", "wrong", ((wrong, 1.0),), 0.0),
    ]
    return tuple(
        Line(name=name, color=color, terms=terms, constant=plus, is_layer=True)
        for name, color, terms, plus in parts
    )


def _metrics(line: Line) -> frozenset[str]:
    return frozenset(name for name, _ in line.terms)
