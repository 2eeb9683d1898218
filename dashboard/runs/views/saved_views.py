"""Views of the run list that are kept under a name and a short link."""

from __future__ import annotations

from urllib.parse import unquote_plus

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership
from dashboard.accounts.models import Membership, User
from dashboard.project.edits import Edit, EditConflict, show_conflict
from dashboard.runs.models import SavedView
from dashboard.runs.table.saved_views import (
    change_view,
    delete_view,
    get_view,
    save_view,
    set_default,
)

FIELDS = {"address": "query", "shared": "is_shared"}  # by their controls' names


@require_safe
def runs_view(request: HttpRequest, team: str, code: str) -> HttpResponse:
    """The short link: to the list as it was saved."""
    assert isinstance(request.user, User)
    team_ = get_membership(request.user, team).team
    view = get_view(team_, request.user, code)
    return redirect(_address(team, view))


@require_POST
def runs_view_save(request: HttpRequest, team: str) -> HttpResponse:
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    query = request.POST.get("address", "")
    is_shared = "shared" in request.POST
    _check_may_share(membership, is_shared=is_shared)
    try:
        view = save_view(
            team=membership.team,
            user=request.user,
            name=request.POST.get("name", ""),
            query=query,
            is_shared=is_shared,
        )
    except ValueError as error:
        messages.error(request, f"The view was not saved. {error}")
        return redirect(f"{reverse('runs', args=[team])}?{query or 'view='}")
    messages.success(request, f"{view} is saved.")
    return redirect(_address(team, view))


@require_POST
def runs_view_change(request: HttpRequest, team: str, code: str) -> HttpResponse:
    """Rename, share, update to what is shown, make it one's first, or delete it."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    view = get_view(membership.team, request.user, code)
    action = request.POST.get("action", "")
    if action in ("default", "no-default"):
        set_default(view, request.user, is_default=action == "default")
        how = "is now" if action == "default" else "is no longer"
        messages.success(request, f"{view} {how} what your list begins with.")
        return redirect(_address(team, view))
    _check_may_change(membership, view)
    if action == "delete":
        delete_view(view, user=request.user)
        messages.success(request, f"{view} is deleted; the runs are as they were.")
        return redirect(f"{reverse('runs', args=[team])}?{view.query or 'view='}")
    try:
        _change(request, membership, view, action)
    except EditConflict as conflict:
        view.refresh_from_db()
        return show_conflict(
            request,
            conflict,
            what=view.name,
            back=_address(team, view),
            labels={"address": "Filters and columns"},
            choices=_readable(request, conflict),
            team=membership.team,
        )
    except ValueError as error:
        messages.error(request, f"Nothing was changed. {error}")
    else:
        messages.success(request, f"{view} is changed.")
    return redirect(_address(team, view))


def _readable(
    request: HttpRequest, conflict: EditConflict
) -> dict[str, dict[str, str]]:
    """Addresses without their %3D."""
    return {
        clash.field: {
            query: unquote_plus(query)
            for query in (clash.now, request.POST.get(clash.field, ""))
        }
        for clash in conflict.clashes
        if clash.field == "address"
    }


def _change(
    request: HttpRequest, membership: Membership, view: SavedView, action: str
) -> None:
    if action == "update":
        sent = Edit.read(request.POST, ["address"])
    elif action == "rename":
        sent = Edit.read(request.POST, ["name"], flags=["shared"])
        _check_may_share(membership, is_shared=sent.given["shared"])
    else:
        raise ValueError(f"A view takes rename, update or delete; got {action[:40]!r}.")
    change_view(view, user=membership.user, edit=sent.rename(FIELDS))


def _check_may_share(membership: Membership, *, is_shared: bool) -> None:
    if is_shared and not membership.can_write:
        raise PermissionDenied(
            f"Your role in {membership.team} is viewer, whose views are their own. Ask "
            "a member to save this one for the team."
        )


def _check_may_change(membership: Membership, view: SavedView) -> None:
    """One's own, and as a member the team's."""
    if view.owner_id != membership.user_id and not membership.can_write:
        raise PermissionDenied(
            f"{view} is the team's, and your role in {membership.team} is viewer. Save "
            "a view of your own instead."
        )


def _address(team: str, view: SavedView) -> str:
    query = QueryDict(view.query, mutable=True)
    query["view"] = view.code
    return f"{reverse('runs', args=[team])}?{query.urlencode()}"
