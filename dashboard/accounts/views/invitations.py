"""Inviting people, and what they find behind the link."""

from __future__ import annotations

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_managing_membership
from dashboard.accounts.adapters import link
from dashboard.accounts.forms import InviteForm, SignUpForm
from dashboard.accounts.members import (
    accept,
    find_invitation,
    invite,
    revoke,
    send_invitation,
)
from dashboard.accounts.models import Invitation, Membership, User
from dashboard.accounts.views.sign_in import enter
from dashboard.accounts.views.team import render_settings


@never_cache
@require_POST
def team_invite(request: HttpRequest, team: str) -> HttpResponse:
    """The page with the new link, which is shown this once."""
    by = get_managing_membership(request, team)
    form = InviteForm(request.POST, by=by, can_send=settings.MAIL_IS_SET_UP)
    if not form.is_valid():
        return render_settings(
            request, by, invite_form=form, refusal="Nobody was invited, see below."
        )
    try:
        made, token = invite(by=by, **form.cleaned_data)
    except ValueError as refusal:
        return render_settings(request, by, refusal=refusal)
    address = link(request, reverse("invitation", args=[token]))
    shown = {"invited": made, "invitation_address": address}
    if made.email and settings.MAIL_IS_SET_UP:
        try:
            send_invitation(made, address)
            shown["is_sent"] = True
        except ValueError as trouble:
            shown["trouble"] = trouble
    return render_settings(request, by, **shown)


@require_POST
def invitation_revoke(
    request: HttpRequest, team: str, invitation_id: int
) -> HttpResponse:
    by = get_managing_membership(request, team)
    found = get_object_or_404(by.team.invitations, pk=invitation_id)
    if revoke(found, by=by.user):
        messages.success(request, "The invitation works no more.")
    else:
        messages.info(request, "The invitation was used, revoked or expired before.")
    return redirect("team_settings", team)


@login_not_required
@sensitive_post_parameters("password1", "password2")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Who is signed in joins by a button, anybody else by signing up or in."""
    found = find_invitation(token)
    if found is None:
        return _gone(request)
    if not request.user.is_authenticated:
        return _sign_up(request, found, token)
    assert isinstance(request.user, User)
    context = {"invitation": found}
    if request.method == "POST":
        try:
            member = accept(token, request.user)
        except ValueError as refusal:
            page = {**context, "refusal": refusal}
            return render(request, "accounts/invitation.html", page, status=422)
        return _welcome(request, member) if member else _gone(request)
    return render(request, "accounts/invitation.html", context)


def _sign_up(request: HttpRequest, found: Invitation, token: str) -> HttpResponse:
    form = SignUpForm(request.POST or None, initial={"email": found.email})
    if form.is_bound and form.is_valid():
        with transaction.atomic():
            user = form.save()
            member = accept(token, user)
            if member is None:  # somebody else was quicker
                transaction.set_rollback(True)
        if member is None:
            return _gone(request)
        enter(request, user, "/")
        if user.email:
            # It is verified by a mail, if there is a server for it.
            EmailAddress.objects.add_email(request, user, user.email, confirm=True)
        return _welcome(request, member)
    context = {"invitation": found, "form": form, "here": request.path}
    status = 422 if form.is_bound else 200
    return render(request, "accounts/invitation.html", context, status=status)


def _welcome(request: HttpRequest, member: Membership) -> HttpResponse:
    messages.success(request, f"You are in {member.team} now, as {member.role}.")
    return redirect("runs", member.team.slug)


def _gone(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/invitation_gone.html", status=410)
