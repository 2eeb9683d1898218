"""A team's own part of the line: its queued runs, and how many of others' between."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from dashboard.runs.queue.line import Line, Place
from dashboard.runs.queue.sentences import title_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run of the team, after some of other teams."""

    run: Run
    place: Place
    num_foreign: int  # between it and the team's run before it
    start: str
    can_rise: bool
    can_sink: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamLine:
    entries: list[Entry]
    num_foreign_after: int


def team_line(team: Team, line: Line) -> TeamLine:
    """One query."""
    entries = _entries(team, line)
    num_passed = sum(entry.num_foreign for entry in entries)
    own = sum(entry.place.number is not None for entry in entries)
    num_after = line.num_startable - own - num_passed
    return TeamLine(entries=entries, num_foreign_after=num_after)


def _entries(team: Team, line: Line) -> list[Entry]:
    """In the team's own order, which a hold does not change."""
    queued = Run.objects.filter(team=team, id__in=line.places).select_related("owner")
    runs = [
        (run, line.places[run.id])
        for run in queued.defer("config", "summary", "metric_names")
    ]
    runs.sort(key=lambda pair: pair[1].waiting.rank)
    of_priority = [place.waiting.priority for _, place in runs]
    entries, passed = [], 0
    for at, (run, place) in enumerate(runs):
        num_foreign = max(0, place.num_foreign_before - passed) if place.number else 0
        passed += num_foreign
        entries.append(
            Entry(
                run=run,
                place=place,
                num_foreign=num_foreign,
                start=title_start(place.start),
                can_rise=at > 0 and of_priority[at - 1] == of_priority[at],
                can_sink=of_priority[at + 1 : at + 2] == of_priority[at : at + 1],
            )
        )
    return entries
