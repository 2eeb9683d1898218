"""What alone may take anything from the audit log: a whole team, or who a person was.

The database refuses every other change of an entry (DECISIONS.md, 18).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from dashboard.accounts.models import AuditEntry, Team, User

logger = logging.getLogger(__name__)
ERASED = "(erased)"
# What entries call a person by, beside an e-mail address, which is nobody else's.
NAMED_AS = ("user", "username", "person", "member", "display_name")


def erase_entries_of_team(team: Team) -> int:
    """Before the team itself is deleted; how many entries went."""
    with _allowed(f"team {team.pk}"):
        num_erased, _ = AuditEntry.objects.filter(team=team).delete()
    logger.warning("%d audit entries of team %s were erased.", num_erased, team.pk)
    return num_erased


def erase_person(user: User) -> int:
    """Before the person's account is deleted: that it was done stays, by whom goes.

    Of how many entries; what was done to the person's own account keeps no details.
    """
    with _allowed("person"):
        # The trigger takes the address and the browser along, and marks the entry.
        erased = AuditEntry.objects.filter(actor=user).update(actor=None)
        about = Q(object_type="user", object_id=user.pk)
        erased += AuditEntry.objects.filter(about).update(detail={})
        erased += _erase_from_details(user)
    logger.warning("Person %s was erased from %d audit entries.", user.pk, erased)
    return erased


def _erase_from_details(user: User) -> int:
    names = {name for name in (user.username, user.display_name) if name}
    named = Q(pk=None)
    for key in NAMED_AS:
        named |= Q(**{f"detail__{key}__in": sorted(names)})
    if user.email:
        named |= Q(detail__icontains=user.email)
    found = AuditEntry.objects.filter(named).values_list("pk", "detail")
    for pk, detail in found:
        kept = {
            key: _without(value, key, names, user.email.casefold())
            for key, value in detail.items()
        }
        AuditEntry.objects.filter(pk=pk).update(detail=kept)
    return len(found)


def _without(value: Any, key: str, names: set[str], email: str) -> Any:
    if not isinstance(value, str):
        return value
    is_name = key in NAMED_AS and value in names
    return ERASED if is_name or (email and email in value.casefold()) else value


@contextmanager
def _allowed(what: str) -> Iterator[None]:
    """Of this transaction alone: the trigger asks for it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('cohort.erasing', %s, true)", [what])
        yield
        cursor.execute("SELECT set_config('cohort.erasing', '', true)")
