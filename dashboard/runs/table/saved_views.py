"""Saved views of the run list, and boards: which charts a page Metrics has, in order.

Both are addresses, personal or shared with the team.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import QueryDict

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import describe_change, record
from dashboard.project.database import FixedQuery
from dashboard.project.errors import UserError, or_404
from dashboard.runs.models import DefaultView, SavedView, ViewPage
from dashboard.web.edits import find_changes

# Parts of an address that a view does not save. Steps are those of one run.
NOT_SAVED = {
    ViewPage.RUNS: ("page", "open", "view"),
    ViewPage.METRICS: ("board", "view", "q", "flat", "from", "to", "first", "last"),
}
MAX_NAME = 60
MAX_QUERY = 4_000


def visible_views(team: Team | int, user: User | int) -> QuerySet[SavedView]:
    """List the user's own views and the team's, by name, with `is_default`."""
    is_it = Q(view=OuterRef("pk")) | Q(board=OuterRef("pk"))
    defaults = DefaultView.objects.filter(is_it, user=user)
    return (
        SavedView.objects.filter(Q(owner=user) | Q(is_shared=True), team=team)
        .select_related("owner")
        .annotate(is_default=Exists(defaults))
        .order_by("name", "pk")
    )


_visible_views = FixedQuery(visible_views)


def list_views(team: Team, user: User, page: ViewPage) -> list[SavedView]:
    """List the visible views of a page; one query."""
    return [view for view in _visible_views(team.pk, user.pk) if view.page == page]


def find_default(views: Iterable[SavedView]) -> SavedView | None:
    """Find the one of a page's visible views that it opens with."""
    return next((v for v in views if getattr(v, "is_default", False)), None)


def get_view(team: Team, user: User, code: str) -> SavedView:
    """Answer 404 for views of other teams, and personal views of other users."""
    view = visible_views(team, user).filter(code=code).first()
    return or_404(view, "View not found.")


def clean_query(query: str, page: ViewPage) -> str:
    """Return the part of an address that a view saves.

    UserError if it is too long, or names no charts of a board.
    """
    saved = QueryDict(query, mutable=True)
    for name in NOT_SAVED[page]:
        saved.pop(name, None)
    text = saved.urlencode()
    if len(text) > MAX_QUERY:
        parts = "columns" if page == ViewPage.RUNS else "charts"
        raise UserError(
            "views.too_long",
            f"The {page.label} has {len(text):,} characters; at most {MAX_QUERY:,} are "
            f"allowed. Choose fewer {parts}.",
        )
    if page == ViewPage.METRICS and not saved.get("show", "").strip(","):
        raise UserError(
            "views.no_charts", "The board has no charts. Tick at least one metric."
        )
    return text


def check_name(name: str) -> str:
    name = " ".join(name.replace("\x00", "").split())
    if not name:
        raise UserError("views.name_missing", "The name is missing.")
    if len(name) > MAX_NAME:
        raise UserError(
            "views.name_too_long",
            f"A name has at most {MAX_NAME} characters; got {len(name)}.",
        )
    return name


def save_view(
    *,
    team: Team,
    user: User,
    page: ViewPage,
    name: str,
    query: str,
    is_shared: bool,
) -> SavedView:
    """UserError if the user has a view of that name."""
    fields = {"name": check_name(name), "query": clean_query(query, page)}
    with _own_name(name, page):
        view = SavedView.objects.create(
            team=team, owner=user, page=page, is_shared=is_shared, **fields
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
    page = ViewPage(view.page)
    read: dict[str, Callable[[Any], Any]] = {
        "name": check_name,
        "query": lambda query: clean_query(query, page),
    }
    changes = find_changes(
        now, {n: read.get(n, bool)(value) for n, value in typed.items()}, base
    )
    for name, value in {**now, **changes}.items():
        setattr(view, name, value)
    if not changes:
        return
    with _own_name(view.name, page):
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
        field = page.label
        others = DefaultView.objects.filter(**{field: view}).exclude(user=view.owner)
        others.update(**{field: None})


@transaction.atomic
def delete_view(view: SavedView, *, user: User) -> None:
    if view.is_shared:
        record(view.team, user, "view.deleted", view, name=view.name)
    view.delete()


@contextmanager
def _own_name(name: str, page: ViewPage) -> Iterator[None]:
    try:
        with transaction.atomic():
            yield
    except IntegrityError:
        raise UserError(
            "views.name_taken",
            f"A {page.label} named “{name}” already exists. Choose another name, or "
            f"open that {page.label} and update it.",
        ) from None


def set_default(view: SavedView, user: User, *, is_default: bool) -> None:
    field = ViewPage(view.page).label
    if is_default:
        DefaultView.objects.update_or_create(
            team=view.team, user=user, defaults={field: view}
        )
    else:
        DefaultView.objects.filter(**{field: view}, user=user).update(**{field: None})
