"""A person's data: exported as one document, and erased from the server.

Foreign keys in the database find the data, so that no table is forgotten.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models, transaction
from django.db.models import Exists, OuterRef, Q
from django.forms.models import model_to_dict
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Membership, Role, Team, User
from dashboard.accounts.services import record
from dashboard.project.errors import UserError

logger = logging.getLogger(__name__)
ERASED = "(erased)"
# Audit entries name a person by this, apart from a unique e-mail address.
NAMED_AS = ("user", "username", "person", "member", "display_name")
# Rows that are the person's own words or choices are exported in full, others by name.
WHOLE = {
    "accounts.AuditEntry",
    "accounts.Membership",
    "runs.ChartSettings",
    "runs.SavedView",
    "samples.Comment",
    "samples.Tag",
    "samples.Thumb",
}
ABOUT = ("username", "display_name", "email", "first_name", "last_name")
OUR_WORDS = {
    "api tokens": "API tokens",
    "authenticators": "second factors, passkeys and recovery codes",
    "email addresses": "e-mail addresses",
    "social accounts": "accounts elsewhere",
    "user sessions": "sessions",
}
Encoder = DjangoJSONEncoder

# The audit log. Nothing else removes anything from it: the database refuses every other
# change of an entry (DECISIONS.md, 18).


def erase_entries_of_team(team: Team) -> int:
    """Before the team itself is deleted; how many entries went."""
    with _allowed(f"team {team.pk}"):
        num_erased, _ = AuditEntry.objects.filter(team=team).delete()
    logger.warning("Erased %d audit entries of team %s.", num_erased, team.pk)
    return num_erased


def erase_person(user: User) -> int:
    """Before the person's account is deleted: that it was done stays, by whom goes.

    Of how many entries; what was done to the person's own account keeps no details.
    """
    with _allowed("person"):
        # The trigger also removes the address and the browser, and marks the entry.
        erased = AuditEntry.objects.filter(actor=user).update(actor=None)
        about = Q(object_type="user", object_id=user.pk)
        erased += AuditEntry.objects.filter(about).update(detail={})
        names = {name for name in (user.username, user.display_name) if name}
        named = Q(pk=None)
        for key in NAMED_AS:
            named |= Q(**{f"detail__{key}__in": sorted(names)})
        if user.email:
            named |= Q(detail__icontains=user.email)
        entries = AuditEntry.objects.filter(named).values_list("pk", "detail")
        for pk, detail in entries:
            detail = {
                key: _without(value, key, names, user.email.casefold())
                for key, value in detail.items()
            }
            AuditEntry.objects.filter(pk=pk).update(detail=detail)
        erased += len(entries)
    logger.warning("Erased user %s from %d audit entries.", user.pk, erased)
    return erased


def _without(value: Any, key: str, names: set[str], email: str) -> Any:
    if not isinstance(value, str):
        return value
    is_name = key in NAMED_AS and value in names
    return ERASED if is_name or (email and email in value.casefold()) else value


@contextmanager
def _allowed(what: str) -> Iterator[None]:
    """Allow it for this transaction only: the trigger checks it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('cohort.erasing', %s, true)", [what])
        yield
        cursor.execute("SELECT set_config('cohort.erasing', '', true)")


# The whole person: exported, counted, erased.


def export_of(user: User) -> dict[str, Any]:
    """Export the data about a person, without credentials."""
    rows = {}
    for relation in _references():
        related = _rows_of(relation, user)
        named = f"{relation.related_model._meta.label}.{relation.field.name}"
        if listed := [_describe(row) for row in related.order_by("pk").iterator()]:
            rows[named] = listed
    return {
        "made_at": timezone.now(),
        "person": {name: getattr(user, name) for name in ABOUT}
        | {"joined_at": user.date_joined, "last_sign_in_at": user.last_login},
        "rows": rows,
    }


def count_of(user: User) -> dict[str, int]:
    """Count rows that name the person, by what they are, in words."""
    counts: dict[str, int] = {}
    for relation in _references():
        rows = _rows_of(relation, user)
        name = str(relation.related_model._meta.verbose_name_plural)
        name = OUR_WORDS.get(name) or re.sub("rys$", "ries", name)
        counts[name] = counts.get(name, 0) + rows.count()
    return {name: count for name, count in sorted(counts.items()) if count}


def why_kept(user: User) -> str:
    """Return why the person cannot be erased yet; "" where that is possible."""
    owners = Membership.objects.filter(role=Role.OWNER, user__is_active=True)
    others = owners.filter(team=OuterRef("team")).exclude(user=user)
    owned = Membership.objects.filter(~Exists(others), user=user, role=Role.OWNER)
    teams = owned.order_by("pk").values_list("team__name", flat=True)
    if not teams:
        return ""
    return (
        f"{user} is the only owner of {', '.join(teams)}. Make someone else an "
        "owner first."
    )


@transaction.atomic
def erase(user: User) -> None:
    """Delete the account and the person's own data; teams keep runs, datasets and
    comments, without the name.

    ValueError if a team would have no owner.
    """
    # Two owners who go at the same time would otherwise leave none.
    teams = Team.objects.filter(memberships__user=user).order_by("pk")
    list(Team.objects.select_for_update().filter(pk__in=teams.values("pk")))
    if reason := why_kept(user):
        raise UserError("accounts.only_owner", f"Not deleted: {reason}")
    for team in teams:
        # By the person; the next line removes name and address.
        record(team, user, "team.member_erased", team)
    erase_person(user)
    user.delete()


def _references() -> list[models.ManyToOneRel]:
    """List every column of every table that refers to a person."""
    return [
        field
        for field in User._meta.get_fields(include_hidden=True)
        if isinstance(field, models.ManyToOneRel)
    ]


def _rows_of(relation: models.ManyToOneRel, user: User) -> models.QuerySet[Any]:
    return relation.related_model._base_manager.filter(**{relation.field.name: user})


def _describe(row: models.Model) -> dict[str, Any]:
    if row._meta.label in WHOLE:
        whole = model_to_dict(row)
        created = getattr(row, "created_at", None)
        return {"id": row.pk, **whole, **({"created_at": created} if created else {})}
    return {"id": row.pk, "what": str(row)}
