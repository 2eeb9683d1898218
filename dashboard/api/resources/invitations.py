"""Links by which people join the team."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.http import Http404, HttpRequest
from django.urls import reverse
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.forms import InviteForm
from dashboard.accounts.members import invite, open_invitations, revoke, send_invitation
from dashboard.accounts.models import Invitation
from dashboard.api.auth import ADMIN, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import or_conflict
from dashboard.api.replays import show_once
from dashboard.api.schemas import Done, Id, Input, Person, fill

router = Router(tags=["Team"], auth=ADMIN)


class InvitationOut(Schema):
    id: int = Field(examples=[8])
    role: str = Field(examples=["member"])
    email: str = Field(description="Whom it is for.", examples=["bob@example.org"])
    created_by: Person | None
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, row: Invitation) -> InvitationOut:
        return fill(cls, row, created_by=Person.of(row.created_by))


@router.get("", response=Page[InvitationOut], summary="List open invitations")
def invitations(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """The newest first; not those that were used or revoked, or have expired."""
    found = open_invitations(access_of(request).team)
    return page_by(found, InvitationOut.of, cursor=cursor, limit=limit)


class InvitationIn(Input):
    role: Literal["viewer", "member", "admin"] = Field(examples=["member"])
    email: str = Field(
        default="",
        max_length=400,
        description="The link is sent there, where the server has a mail server.",
        examples=["bob@example.org"],
    )


class NewInvitation(InvitationOut):
    address: str | None = Field(
        description="Works once, for seven days. Shown this once; a repeat by "
        "Idempotency-Key says null.",
        examples=["https://cohort.example.org/invitation/…/"],
    )
    is_sent: bool = Field(description="To the e-mail address.")
    problem: str = Field(description="Why it could not be sent.", examples=[""])


@router.post("", response={201: NewInvitation}, summary="Invite somebody")
def invite_member(request: HttpRequest, payload: InvitationIn) -> Status[NewInvitation]:
    """Whoever opens the address joins the team; pass it on where it is not sent."""
    access = access_of(request)
    can_send = settings.MAIL_IS_SET_UP
    form = InviteForm(payload.model_dump(), by=access.membership, can_send=can_send)
    refuse_errors(form, place="body")
    with or_conflict():
        made, token = invite(by=access.membership, **form.cleaned_data)
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


@router.delete("/{invitation_id}", response=Done, summary="Revoke an invitation")
def revoke_invitation(request: HttpRequest, invitation_id: Id) -> Done:
    """Its address works no more."""
    access = access_of(request)
    found = access.team.invitations.filter(pk=invitation_id).first()
    if found is None:
        raise Http404(f"{access.team} has no invitation {invitation_id}.")
    if revoke(found, by=access.user):
        return Done(done=True)
    return Done(done=False, detail="It was used, revoked or expired before.")
