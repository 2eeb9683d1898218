from __future__ import annotations

from typing import Literal

from django.db import connection

from dashboard.accounts.models import Team

# From one value to the next in the index: DISTINCT would read a team's every entry.
_NEXT = """
WITH RECURSIVE known(value) AS (
    (SELECT {name} FROM accounts_auditentry
     WHERE team_id = %(team)s ORDER BY {name} LIMIT 1)
    UNION ALL
    SELECT (SELECT {name} FROM accounts_auditentry
            WHERE team_id = %(team)s AND {name} > known.value
            ORDER BY {name} LIMIT 1)
    FROM known WHERE known.value IS NOT NULL
)
SELECT value FROM known WHERE value IS NOT NULL
"""


def known_values(team: Team, name: Literal["verb", "object_type"]) -> list[str]:
    """What the team's entries have of it, in order; one query."""
    with connection.cursor() as cursor:
        cursor.execute(_NEXT.format(name=name), {"team": team.pk})
        return [value for (value,) in cursor.fetchall()]
