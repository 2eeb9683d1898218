"""Lookups within a person's teams, roles and their rights, who may watch a socket.

Another team's objects are found through the team only, so they are 404 as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.core.exceptions import PermissionDenied
from django.db.models import Exists
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare

from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.project.database import FixedQuery

R = TypeVar("R", bound=HttpResponseBase)
_memberships_of = FixedQuery(
    lambda user: (
        Membership.objects.filter(user=user)
        .select_related("team")
        .order_by("team__name")
    )
)


def read_memberships(request: HttpRequest) -> list[Membership]:
    """Return the reader's memberships by the teams' names; one query a request."""
    cache = vars(request)
    if "memberships" not in cache:
        assert isinstance(request.user, User)
        cache["memberships"] = _memberships_of(request.user.pk)
        for membership in cache["memberships"]:
            membership.user = request.user
    memberships: list[Membership] = cache["memberships"]
    return memberships


def get_membership(request: HttpRequest, slug: str) -> Membership:
    """Return the reader's membership in the team with this slug; 404 if there is
    none.
    """
    for membership in read_memberships(request):
        if membership.team.slug == slug:
            return membership
    raise Http404("Team not found.")


def get_writing_membership(request: HttpRequest, slug: str) -> Membership:
    """Return the membership, to change something; viewers are refused."""
    membership = get_membership(request, slug)
    if not membership.can_write:
        raise PermissionDenied(
            f"Your role in {membership.team} is viewer, which is read-only. Ask a "
            "team admin for the member role."
        )
    return membership


def get_membership_for(request: HttpRequest, slug: str) -> Membership:
    """Return the membership: for reading, or with POST for changing something."""
    is_post = request.method == "POST"
    return (get_writing_membership if is_post else get_membership)(request, slug)


def get_managing_membership(request: HttpRequest, slug: str) -> Membership:
    """Return an admin's or owner's membership, for changing the team's people."""
    membership = get_membership(request, slug)
    if not membership.can_manage:
        raise PermissionDenied(
            f"Your role in {membership.team} is {membership.role}. Only admins and "
            "owners can do this."
        )
    return membership


def get_owning_membership(request: HttpRequest, slug: str) -> Membership:
    return require_owner(get_membership(request, slug))


def require_owner(membership: Membership) -> Membership:
    if not membership.is_owner:
        raise PermissionDenied(
            f"Your role in {membership.team} is {membership.role}. Only owners can "
            "do this."
        )
    return membership


def may_manage_workers(membership: Membership) -> bool:
    """Operators may, as all teams share workers, and admins of the only team."""
    others = Team.objects.exclude(pk=membership.team_id)
    is_of_only_team = membership.can_manage and not others.exists()
    return membership.user.is_staff or is_of_only_team


def require_workers(membership: Membership) -> None:
    if not may_manage_workers(membership):
        raise PermissionDenied(
            "All teams share the workers of this server. Ask an operator to change "
            "them."
        )


def look_up(
    get: Callable[[HttpRequest, str], Membership], **finders: Callable[[Team, Any], Any]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a view what its address names: `membership` or `team`, as it has parameters.

    `get` refuses those who may not; `run=get_run` puts `run` in place of `run_id`.
    """

    def decorate(view: Callable[..., R]) -> Callable[..., R]:
        parameters = signature(view).parameters

        @wraps(view)
        def find_objects(request: HttpRequest, team: str, **values: Any) -> R:
            membership = get(request, team)
            for name, find in finders.items():
                values[name] = find(membership.team, values.pop(f"{name}_id"))
            places = {"membership": membership, "team": membership.team}
            values |= {name: places[name] for name in places.keys() & parameters}
            return view(request, **values)

        return find_objects

    return decorate


ASCENDING = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)


@dataclass(frozen=True, slots=True)
class Right:
    text: str
    least: Role

    @property
    def held(self) -> list[tuple[Role, bool]]:
        """All roles, each with a flag: whether it has this right."""
        return [
            (role, ASCENDING.index(role) >= ASCENDING.index(self.least))
            for role in ASCENDING
        ]


# The pages show this table; the functions above enforce it.
RIGHTS = (
    Right("View, search and download everything in the team", Role.VIEWER),
    Right("Save your own views, boards and chart settings", Role.VIEWER),
    Right("Leave the team", Role.VIEWER),
    Right(
        "Upload and edit datasets, rewards and reports; annotate and comment",
        Role.MEMBER,
    ),
    Right("Launch, stop, change and delete runs; publish models", Role.MEMBER),
    Right("Set up alert rules and channels", Role.MEMBER),
    Right("Invite viewers, members and admins", Role.ADMIN),
    Right("Change roles up to admin; remove everyone except owners", Role.ADMIN),
    Right("Stop workers from taking runs, if there is no other team", Role.ADMIN),
    Right("Create teams", Role.ADMIN),
    Right("Add and remove owners; transfer ownership", Role.OWNER),
    Right("Deactivate people", Role.OWNER),
)


def roles_given_by(role: str) -> list[Role]:
    """Return the roles that a member with this role may give to others."""
    if role == Role.OWNER:
        return list(ASCENDING)
    return [Role.VIEWER, Role.MEMBER, Role.ADMIN] if role == Role.ADMIN else []


def may_watch(user_id: int, session: Any, **of_team: Any) -> bool:
    """Is the user in a team for which this holds, such as `runs=7`?

    Signing out deletes the session, a new password outdates it: both end sockets. One
    query: it is asked for each page twice a minute.
    """
    teams = {f"memberships__team__{name}": value for name, value in of_team.items()}
    member = (
        User.objects.filter(id=user_id, is_active=True, **teams)
        .filter(Exists(Session.objects.filter(session_key=session.session_key)))
        .only("password")
        .first()
    )
    if member is None:
        return False
    return constant_time_compare(
        session.get(HASH_SESSION_KEY, ""), member.get_session_auth_hash()
    )
