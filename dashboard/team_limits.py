"""What a team may still do: asked where something begins that takes room.

Who counts belongs to a rung above all that is counted, so it is named here.
"""

from __future__ import annotations

from django.utils.module_loading import import_string

from dashboard.accounts.models import Team


def check_storage(team: Team, num_bytes: int, *, purpose: str) -> None:
    """ValueError, in words, where so much more is beyond the team's quota."""
    import_string("dashboard.upkeep.quotas.check_storage")(
        team, num_bytes, purpose=purpose
    )


def check_runs(team: Team) -> None:
    """ValueError where the team has as many runs as it may. Asked in a transaction."""
    import_string("dashboard.upkeep.quotas.check_runs")(team)
