"""The lookups every view begins with: a person's own team, or 404.

Another team's objects are found through the team only, so they are 404 as well.
"""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest

from dashboard.accounts.models import Membership, Team, User


def get_membership(user: User, slug: str) -> Membership:
    """The user's place in the team with this slug; 404 when there is none."""
    memberships = Membership.objects.select_related("team", "user")
    try:
        return memberships.get(user=user, team__slug=slug)
    except Membership.DoesNotExist:
        raise Http404("No such team.") from None


def get_team(request: HttpRequest, slug: str) -> Team:
    """The team, to look at."""
    assert isinstance(request.user, User)
    return get_membership(request.user, slug).team


def get_writable_team(request: HttpRequest, slug: str) -> Team:
    """The team, to change something in; viewers are refused."""
    assert isinstance(request.user, User)
    return _writable(get_membership(request.user, slug)).team


def get_managed_team(request: HttpRequest, slug: str) -> Team:
    """The team, for an admin or owner to change what others rely on."""
    return get_managing_membership(request, slug).team


def get_managing_membership(request: HttpRequest, slug: str) -> Membership:
    """An admin's or owner's place in the team, to change its people."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, slug)
    if not membership.can_manage:
        raise PermissionDenied(
            f"Your role in {membership.team} is {membership.role}; this takes an admin "
            "or owner of the team. Ask one of them."
        )
    return membership


def get_owning_membership(request: HttpRequest, slug: str) -> Membership:
    assert isinstance(request.user, User)
    return require_owner(get_membership(request.user, slug))


def require_owner(membership: Membership) -> Membership:
    if not membership.is_owner:
        raise PermissionDenied(
            f"Your role in {membership.team} is {membership.role}; this takes an owner "
            "of the team. Ask one of them."
        )
    return membership


def get_membership_for(request: HttpRequest, slug: str) -> Membership:
    """The user's place in the team: to look, or by a POST to change something."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, slug)
    return _writable(membership) if request.method == "POST" else membership


def _writable(membership: Membership) -> Membership:
    if not membership.can_write:
        raise PermissionDenied(
            f"Your role in {membership.team} is viewer, which may look but not "
            "change. Ask an admin of the team for the member role."
        )
    return membership
