"""What the audit looks at, each as a series and what a change of it may mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dashboard.insights.audit.series import Series

# Which way it goes where a reward is gamed.
Suspect = Literal["up", "down", "either"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    name: str
    series: Series


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """`series` is what is judged; `lines` what is drawn, where that tells more."""

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
    is_share: bool = False  # said in per cent
    num_tried: int = 1  # series of which this one changes most

    @property
    def drawn(self) -> tuple[Line, ...]:
        if self.lines or self.series is None:
            return self.lines
        return (Line(name=self.title, series=self.series),)
