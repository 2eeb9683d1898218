"""Whether a team has room for more: asked through dashboard.accounts.members."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import num_bytes as in_words
from dashboard.runs.models import ENDED
from dashboard.upkeep.measuring import measure, told_bytes, waiting_bytes
from dashboard.upkeep.models import Quota, Use

ASK = "An operator of the server can allow more."


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What a team uses, of what it may."""

    parts: dict[str, int]
    measured_at: datetime
    max_bytes: int | None
    num_runs: int
    max_runs: int | None

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def is_full(self) -> bool:
        return self.max_bytes is not None and self.num_bytes >= self.max_bytes


def standing_of(team: Team) -> Standing:
    use = Use.objects.filter(team=team).first() or measure(team)
    quota = Quota.objects.filter(team=team).first() or Quota(team=team)
    return Standing(
        parts={
            **use.parts,
            "outside": told_bytes(team),
            "waiting": waiting_bytes(team),
        },
        measured_at=use.measured_at,
        max_bytes=quota.max_bytes,
        num_runs=team.runs.exclude(state__in=ENDED).count(),
        max_runs=quota.max_runs,
    )


def check_storage(team: Team, num_bytes: int, *, purpose: str) -> None:
    """ValueError where so much more is beyond the quota, or it is reached already."""
    if not Quota.objects.filter(team=team, max_bytes__isnull=False).exists():
        return
    standing = standing_of(team)
    assert standing.max_bytes is not None
    if standing.is_full or standing.num_bytes + num_bytes > standing.max_bytes:
        needs = f"needs {in_words(num_bytes)}" if num_bytes else "needs room"
        raise ValueError(
            f"{team} uses {in_words(standing.num_bytes)} of its "
            f"{in_words(standing.max_bytes)} of storage; {purpose} {needs}. "
            "Delete runs, checkpoints, models or datasets, from the trash too. "
            f"{ASK}"
        )


def check_runs(team: Team) -> None:
    """ValueError where the team has as many runs at once as it may.

    Two launches at the same time wait for each other where there is a quota.
    """
    quotas = Quota.objects.select_for_update().filter(team=team)
    quota = quotas.first()
    if quota is None:
        return
    num_runs = team.runs.exclude(state__in=ENDED).count()
    if quota.max_runs is not None and num_runs >= quota.max_runs:
        raise ValueError(
            f"{team} has {num_runs:,} runs that have not ended, and may have "
            f"{quota.max_runs:,} at once. Wait for one to end, or stop one. {ASK}"
        )
    check_storage(team, 0, purpose="a run")
