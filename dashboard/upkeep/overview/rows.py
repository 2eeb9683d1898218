"""Rows of the operators' page: what is there, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.upkeep.readiness.parts import Report, State

WORDS: dict[State, str] = {"ok": "well", "degraded": "look at it", "failed": "broken"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    name: str
    value: str  # with its unit
    state: State = "ok"
    advice: str = ""  # where it is not ok
    runbook: str = ""  # a heading of RUNBOOK.md
    link: str = ""  # where there is more

    @property
    def word(self) -> str:
        return WORDS[self.state]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    title: str
    key: str
    rows: Sequence[Row]
    empty: str = ""  # said where there is no row

    @property
    def num_bad(self) -> int:
        return sum(row.state != "ok" for row in self.rows)


def rows_of_report(report: Report) -> Section:
    rows = [
        Row(
            name=part.name.capitalize(),
            value=part.value,
            state=part.state,
            advice=part.remedy,
            runbook=part.runbook,
        )
        for part in report.parts
    ]
    return Section(title="Parts", key="parts", rows=rows)
