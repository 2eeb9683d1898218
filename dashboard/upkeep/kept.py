"""How long a team's things are kept: the trash, and completions of runs that ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from django.db import transaction

from dashboard.accounts.models import Team, User
from dashboard.project.edits import Edit
from dashboard.upkeep.old_completions import completion_days_of, set_completion_days
from dashboard.upkeep.retention import days_of, set_days


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """How long; named as the form's fields."""

    days: int  # in the trash
    completion_days: int | None  # None: for good

    @property
    def words(self) -> str:
        return f"The trash is kept for {_in_days(self.days)}, {self.completion_words}."

    @property
    def completion_words(self) -> str:
        if self.completion_days is None:
            return "completions for good"
        return f"completions for {_in_days(self.completion_days)} after a run's end"


def kept_by(team: Team) -> Kept:
    return Kept(days=days_of(team), completion_days=completion_days_of(team))


@transaction.atomic
def keep(team: Team, user: User, edit: Edit) -> Kept:
    """What is so already is not written down. ValueError where it is not allowed.

    EditConflict: somebody changed the same meanwhile.
    """
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    before = kept_by(team)
    chosen = replace(before, **edit.merge(asdict(before)))
    if chosen.days != before.days:
        set_days(team, user, chosen.days)
    if chosen.completion_days != before.completion_days:
        set_completion_days(team, user, chosen.completion_days)
    return chosen


def _in_days(days: int) -> str:
    return f"{days:,} day{'' if days == 1 else 's'}"
