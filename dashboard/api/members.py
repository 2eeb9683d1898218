"""The team's members, invitations and tokens; and the owner of the request's token."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.access import require_owner
from dashboard.accounts.forms import InviteForm
from dashboard.accounts.members import (
    change_role,
    deactivate,
    invite,
    open_invitations,
    reactivate,
    remove_member,
    revoke,
    send_invitation,
)
from dashboard.accounts.models import Invitation, Membership, Team
from dashboard.api import guards
from dashboard.api.auth import (
    ADMIN,
    ANY,
    READ,
    Access,
    ApiRequest,
    list_tokens,
    revoke_token,
)
from dashboard.api.guards import show_once
from dashboard.api.models import ApiToken
from dashboard.api.problems import or_conflict
from dashboard.api.schemas import (
    Change,
    Cursor,
    Done,
    Id,
    Input,
    Limit,
    Page,
    Person,
    fill,
    page_by,
    refuse_errors,
)
from dashboard.project.errors import or_404

router = Router(tags=["Team"], auth=READ)
invitations_router = Router(tags=["Team"], auth=ADMIN)
me_router = Router(tags=["Token"])
tokens_router = Router(tags=["Token"], auth=ADMIN)
own_token_router = Router(tags=["Token"], auth=ANY)


class InvitationOut(Schema):
    id: int = Field(examples=[8])
    role: str = Field(examples=["member"])
    email: str = Field(
        description="Address of the invited person.", examples=["bob@example.org"]
    )
    created_by: Person | None
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, row: Invitation) -> InvitationOut:
        return fill(cls, row, created_by=Person.of(row.created_by))


@invitations_router.get(
    "", response=Page[InvitationOut], summary="List open invitations"
)
def invitations(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first, without used, revoked and expired invitations."""
    invitations_ = open_invitations(request.auth.team)
    return page_by(invitations_, InvitationOut.of, cursor=cursor, limit=limit)


class InvitationIn(Input):
    role: Literal["viewer", "member", "admin"] = Field(examples=["member"])
    email: str = Field(
        default="",
        max_length=400,
        description="Cohort sends the link there if a mail server is set up.",
        examples=["bob@example.org"],
    )


class NewInvitation(InvitationOut):
    address: str | None = Field(
        description="Works once, for 7 days. Shown only once; a replay by "
        "Idempotency-Key returns null.",
        examples=["https://cohort.example.org/invitation/…/"],
    )
    is_sent: bool = Field(description="Sent to the e-mail address.")
    problem: str = Field(description="Why sending failed.", examples=[""])


@invitations_router.post("", response={201: NewInvitation}, summary="Invite someone")
def invite_member(request: ApiRequest, payload: InvitationIn) -> Status[NewInvitation]:
    """Opening the address joins the team. Share it if Cohort does not send e-mail."""
    can_send = settings.MAIL_IS_SET_UP
    form = InviteForm(
        payload.model_dump(), by=request.auth.membership, can_send=can_send
    )
    refuse_errors(form, place="body")
    with or_conflict():
        made, token = invite(by=request.auth.membership, **form.cleaned_data)
    address = request.build_absolute_uri(reverse("invitation", args=[token]))
    is_sent, problem = bool(made.email and can_send), ""
    if is_sent:
        try:
            send_invitation(made, address)
        except ValueError as trouble:
            is_sent, problem = False, str(trouble)
    show_once(request, "address")
    fields = InvitationOut.of(made).model_dump()
    return Status(
        201, NewInvitation(**fields, address=address, is_sent=is_sent, problem=problem)
    )


@invitations_router.delete(
    "/{invitation_id}", response=Done, summary="Revoke an invitation"
)
def revoke_invitation(request: ApiRequest, invitation_id: Id) -> Done:
    """Revoke an invitation. Its address stops working."""
    row = request.auth.team.invitations.filter(pk=invitation_id).first()
    invitation = or_404(row, f"{request.auth.team} has no invitation {invitation_id}.")
    if revoke(invitation, by=request.auth.user):
        return Done(done=True)
    return Done(done=False, detail="It was already used, revoked or expired.")


# Whom the token is of.


class TeamOut(Schema):
    slug: str = Field(examples=["lab"])
    name: str = Field(examples=["Lab"])


class Me(Schema):
    person: Person
    team: TeamOut
    role: str = Field(examples=["member"])
    scopes: list[str] = Field(
        description="What the token allows with the person's current role.",
        examples=[["read", "write"]],
    )
    token: str = Field(examples=["laptop (…x4Qz)"])
    expires_at: datetime | None
    requests_per_minute: int = Field(examples=[600])


@me_router.get("/me", response=Me, auth=ANY, summary="Get the token's owner")
def me(request: ApiRequest) -> Me:
    """Return the person, the team and the scopes of the token."""
    is_ingest = request.auth.token.scopes == ["ingest"]
    most = guards.MAX_OF_INGEST if is_ingest else guards.MAX_OF_TOKEN
    person = Person.of(request.auth.user)
    assert person is not None
    return Me(
        person=person,
        team=TeamOut(slug=request.auth.team.slug, name=request.auth.team.name),
        role=request.auth.membership.role,
        scopes=sorted(request.auth.scopes),
        token=str(request.auth.token),
        expires_at=request.auth.token.expires_at,
        requests_per_minute=most,
    )


# Members and their roles.


class MemberOut(Schema):
    id: int = Field(examples=[3])
    person: Person
    role: str = Field(description="viewer, member, admin or owner", examples=["member"])
    is_active: bool = Field(description="False: deactivated.")
    joined_at: datetime

    @classmethod
    def of(cls, row: Membership) -> MemberOut:
        person = Person.of(row.user)
        assert person is not None
        return cls(
            id=row.pk,
            person=person,
            role=row.role,
            is_active=row.user.is_active,
            joined_at=row.created_at,
        )


@router.get("", response=Page[MemberOut], summary="List members")
def members(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """List members in order of joining."""
    members_ = request.auth.team.memberships.select_related("user")
    return page_by(members_, MemberOut.of, cursor=cursor, limit=limit, key="pk")


class MemberChange(Change):
    role: Literal["viewer", "member", "admin", "owner"] | None = Field(
        default=None,
        description="Only owners can add and remove owners. A team keeps at least one.",
        examples=["admin"],
    )
    is_active: bool | None = Field(
        default=None,
        description="Requires an owner of every team the person is in. False: they "
        "are signed out, and their tokens stop working.",
    )


@router.patch("/{member_id}", response=MemberOut, auth=ADMIN, summary="Change a member")
def change_member(
    request: ApiRequest, member_id: Id, payload: MemberChange
) -> MemberOut:
    """Change a member's role, and whether the person can sign in."""
    of = _find(request.auth, member_id)
    with or_conflict(), transaction.atomic():
        Team.objects.select_for_update().get(pk=request.auth.team.pk)  # first, as below
        sent = payload.over(MemberOut.of(_find(request.auth, member_id)))
        role, is_active = sent.get("role"), sent.get("is_active")
        if role is not None:
            change_role(by=request.auth.membership, of=of, role=role)
        if is_active is not None:
            switch = reactivate if is_active else deactivate
            switch(by=require_owner(request.auth.membership), member=of)
    return MemberOut.of(_find(request.auth, member_id))


@router.delete("/{member_id}", response=Done, auth=ADMIN, summary="Remove a member")
def remove_team_member(request: ApiRequest, member_id: Id) -> Done:
    """Keeps their data. Only owners can remove an owner."""
    member = _find(request.auth, member_id)
    with or_conflict():
        remove_member(by=request.auth.membership, member=member)
    return Done(done=True)


def _find(access: Access, member_id: int) -> Membership:
    members = access.team.memberships.select_related("user", "team")
    member = members.filter(pk=member_id).first()
    return or_404(member, f"{access.team} has no member {member_id}.")


# The team's tokens, for those who manage it.


class TokenOut(Schema):
    id: int = Field(examples=[3])
    name: str = Field(examples=["nightly"])
    hint: str = Field(description="Its last characters.", examples=["x4Qz"])
    person: Person | None
    scopes: list[str] = Field(examples=[["read"]])
    state: str = Field(
        description="active, expired, revoked or suspended (its owner is deactivated)",
        examples=["active"],
    )
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@tokens_router.get("", response=Page[TokenOut], summary="List tokens")
def tokens(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """List all tokens of the team, newest first, without their text."""
    return page_by(
        list_tokens(request.auth.team),
        lambda token: fill(TokenOut, token, person=Person.of(token.user)),
        cursor=cursor,
        limit=limit,
    )


@tokens_router.delete("/{token_id}", response=Done, summary="Revoke a token")
def delete_token(request: ApiRequest, token_id: Id) -> Done:
    """Revoke a token, which stops working at once.

    The owner of a token can revoke it without the scope admin: `DELETE /me/token`.
    """
    token = list_tokens(request.auth.team).filter(pk=token_id).first()
    return _revoke(
        request, or_404(token, f"{request.auth.team} has no token {token_id}.")
    )


@own_token_router.delete("/token", response=Done, summary="Revoke this token")
def revoke_own_token(request: ApiRequest) -> Done:
    """Revoke the token of this request, which stops working at once."""
    return _revoke(request, request.auth.token)


def _revoke(request: ApiRequest, token: ApiToken) -> Done:
    if revoke_token(token=token, user=request.auth.user):
        return Done(done=True)
    return Done(done=False, detail="It was already revoked.")
