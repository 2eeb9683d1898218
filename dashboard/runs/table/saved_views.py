"""Saved views: addresses of the run list, personal or shared with the team."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import Http404, QueryDict

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import describe_change, record
from dashboard.project.database import FixedQuery
from dashboard.project.errors import UserError
from dashboard.runs.models import DefaultView, SavedView
from dashboard.web.edits import find_changes

# Parts of an address that a view does not save.
NOT_SAVED = ("page", "open", "view")
MAX_NAME = 60
MAX_QUERY = 4_000


def visible_views(team: Team | int, user: User | int) -> QuerySet[SavedView]:
    """List the user's own views and the team's, by name, with `is_default`."""
    defaults = DefaultView.objects.filter(view=OuterRef("pk"), user=user)
    return (
        SavedView.objects.filter(Q(owner=user) | Q(is_shared=True), team=team)
        .select_related("owner")
        .annotate(is_default=Exists(defaults))
        .order_by("name", "pk")
    )


_visible_views = FixedQuery(visible_views)


def list_views(team: Team, user: User) -> list[SavedView]:
    """List the visible views; one query."""
    return _visible_views(team.pk, user.pk)


def get_view(team: Team, user: User, code: str) -> SavedView:
    """Answer 404 for views of other teams, and personal views of other users."""
    view = visible_views(team, user).filter(code=code).first()
    if view is None:
        raise Http404("View not found.")
    return view


def clean_query(query: str) -> str:
    """Return the part of an address that a view saves. UserError if it is too long."""
    saved = QueryDict(query, mutable=True)
    for name in NOT_SAVED:
        saved.pop(name, None)
    text = saved.urlencode()
    if len(text) > MAX_QUERY:
        raise UserError(
            "views.too_long",
            f"The view has {len(text):,} characters; at most {MAX_QUERY:,} are "
            "allowed. Choose fewer columns.",
        )
    return text


def check_name(name: str) -> str:
    name = " ".join(name.replace("\x00", "").split())
    if not name:
        raise UserError("views.name_missing", "The view needs a name.")
    if len(name) > MAX_NAME:
        raise UserError(
            "views.name_too_long",
            f"A view's name has at most {MAX_NAME} characters; got {len(name)}.",
        )
    return name


def save_view(
    *, team: Team, user: User, name: str, query: str, is_shared: bool
) -> SavedView:
    """UserError if the user has a view of that name."""
    fields = {"name": check_name(name), "query": clean_query(query)}
    with _own_name(name):
        view = SavedView.objects.create(
            team=team, owner=user, is_shared=is_shared, **fields
        )
        if is_shared:
            record(team, user, "view.saved", view, **fields)
        return view


@transaction.atomic
def change_view(
    view: SavedView, *, user: User, typed: Mapping[str, Any], base: str = ""
) -> None:
    """Change name, query or is_shared; UserError if the name is taken.

    EditConflict: the view was changed since `base`.
    """
    locked = SavedView.objects.select_for_update().get(pk=view.pk)
    now = {name: getattr(locked, name) for name in ("name", "query", "is_shared")}
    read: dict[str, Callable[[Any], Any]] = {"name": check_name, "query": clean_query}
    changes = find_changes(
        now, {n: read.get(n, bool)(value) for n, value in typed.items()}, base
    )
    for name, value in {**now, **changes}.items():
        setattr(view, name, value)
    if not changes:
        return
    with _own_name(view.name):
        view.save(update_fields=list(changes))
        if view.is_shared or locked.is_shared:
            record(
                view.team,
                user,
                "view.changed",
                view,
                name=view.name,
                **describe_change(now, changes),
            )
    if not view.is_shared:  # others no longer see it, so it cannot be their default
        DefaultView.objects.filter(view=view).exclude(user=view.owner).delete()


@transaction.atomic
def delete_view(view: SavedView, *, user: User) -> None:
    if view.is_shared:
        record(view.team, user, "view.deleted", view, name=view.name)
    view.delete()


@contextmanager
def _own_name(name: str) -> Iterator[None]:
    try:
        with transaction.atomic():
            yield
    except IntegrityError:
        raise UserError(
            "views.name_taken",
            f"A view named “{name}” already exists. Choose another name, or open that "
            "view and update it.",
        ) from None


def find_default(team: Team, user: User) -> SavedView | None:
    """Find the view that a user's list opens with; one query."""
    default = (
        DefaultView.objects.filter(team=team, user=user)
        .select_related("view")
        .filter(Q(view__owner=user) | Q(view__is_shared=True))
        .first()
    )
    return default.view if default else None


def set_default(view: SavedView, user: User, *, is_default: bool) -> None:
    if is_default:
        DefaultView.objects.update_or_create(
            team=view.team, user=user, defaults={"view": view}
        )
    else:
        DefaultView.objects.filter(view=view, user=user).delete()
