"""Which two of the compared runs, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import QueryDict

from dashboard.accounts.models import Team
from dashboard.insights.duels.forms import DuelForm
from dashboard.insights.duels.meetings import Meeting, Meetings, find_meetings
from dashboard.insights.duels.pairs import Side, read_side
from dashboard.insights.selection import Selection, join_ids, read_selection
from dashboard.runs.models import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    selection: Selection
    runs: tuple[Run, Run] | None  # None: fewer than two are compared
    form: DuelForm

    @property
    def ids(self) -> str:
        return join_ids(self.selection.ids)

    def meet(self) -> Meetings:
        assert self.runs
        return find_meetings(self.runs, self.form.value("step"))


def read_choice(team: Team, query: QueryDict) -> Choice:
    """`a` and `b` of the runs; where they do not name two of them, the first others."""
    selection = read_selection(team, query)
    form = DuelForm.read(query)
    by_id = {run.pk: run for run in selection.runs}
    first = by_id.get(form.value("a")) or next(iter(selection.runs), None)
    others = [run for run in selection.runs if run != first]
    second = by_id.get(form.value("b"))
    if second is None or second == first:
        second = others[0] if others else None
    runs = (first, second) if first and second else None
    return Choice(selection=selection, runs=runs, form=form)


def read_sides(runs: tuple[Run, Run], meeting: Meeting) -> tuple[Side, Side] | None:
    """None: a group has gone since its step was rolled up. Four queries."""
    ours, theirs = (
        read_side(run, prompt, step)
        for run, prompt, step in zip(runs, meeting.prompts, meeting.steps, strict=True)
    )
    return (ours, theirs) if ours and theirs else None
