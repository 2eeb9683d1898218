"""A person's account: profile, password, sessions, and the data kept about them."""

from __future__ import annotations

from typing import Any, TypeAlias

from allauth.account.internal.flows.reauthentication import (
    raise_if_reauthentication_required,
)
from allauth.account.models import EmailAddress
from django.contrib import messages
from django.contrib.auth import logout, update_session_auth_hash
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.adapters import describe_factors, list_connections
from dashboard.accounts.forms import FirstPasswordForm, PasswordForm, ProfileForm
from dashboard.accounts.models import User
from dashboard.accounts.services import record_in_teams
from dashboard.accounts.sessions import (
    end_others,
    end_session,
    list_sessions,
    remember_session,
)
from dashboard.accounts.throttling import TooManyTries, count_try, reset_tries
from dashboard.operations.personal_data import (
    Encoder,
    count_of,
    erase,
    export_of,
    why_kept,
)
from dashboard.pages.requests import Request
from dashboard.web.edits import (
    BASE,
    EditConflict,
    merge_saved,
    show_conflict,
    version_of_form,
)

AnyPasswordForm: TypeAlias = PasswordForm | FirstPasswordForm


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: Request) -> HttpResponse:
    try:
        # On a copy: a refused name must not show up in the page's header.
        data = request.POST if request.POST.get("form") == "profile" else None
        profile = ProfileForm(data, instance=User.objects.get(pk=request.user.pk))
        if data is not None:
            merge_saved(profile, data.get(BASE, ""))
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what="Your account",
            back=request.path,
            labels={"display_name": "Your name"},
        )
    try:
        password = _password_form(request, request.user)
    except TooManyTries as wait:
        context = _context(request, request.user, profile, PasswordForm(request.user))
        context["refusal"] = (
            f"Not changed: too many wrong passwords. Wait {wait.minutes}."
        )
        page = render(request, "accounts/account.html", context, status=429)
        page.headers["Retry-After"] = str(wait.seconds)
        return page
    if profile.is_bound and profile.is_valid():
        profile.instance.save(update_fields=profile.fields)
        messages.success(request, "Saved.")
        return redirect("account")
    if password.is_bound and password.is_valid():
        # Otherwise the new password would end this very session.
        update_session_auth_hash(request, password.save())
        remember_session(request)
        record_in_teams(request.user, "person.password_changed")
        messages.success(request, "Your password is set.")
        return redirect("account")
    status = 422 if profile.is_bound or password.is_bound else 200
    context = _context(request, request.user, profile, password)
    return render(request, "accounts/account.html", context, status=status)


def _context(
    request: Request, user: User, profile: ProfileForm, password: AnyPasswordForm
) -> dict[str, Any]:
    emails = EmailAddress.objects.filter(user=user)
    return {
        "profile": profile,
        "base_version": request.POST.get(BASE) or version_of_form(profile),
        "password": password,
        "emails": emails.order_by("-primary", "email"),
        "factors": describe_factors(user),
        "connections": list_connections(user),
        "sessions": list_sessions(request, user),
    }


@require_POST
def session_end(request: Request, pk: int) -> HttpResponse:
    if not end_session(request.user, pk):
        raise Http404("Session not found.")
    messages.success(request, "Session ended.")
    return redirect("account")


@require_POST
def sessions_end(request: Request) -> HttpResponse:
    ended = end_others(request, request.user)
    messages.success(request, f"{ended} other session{'s' * (ended != 1)} ended.")
    return redirect("account")


def _password_form(request: Request, user: User) -> AnyPasswordForm:
    """Raises TooManyTries: in an open browser its owner's password is not guessed."""
    data = request.POST if request.POST.get("form") == "password" else None
    if not user.has_usable_password():
        return FirstPasswordForm(user, data)
    form = PasswordForm(user, data)
    if form.is_bound:
        who = {"username": "", "address": "", "device": f"account {user.pk}"}
        count_try(**who)
        if "old_password" not in form.errors:
            reset_tries(**who)
    return form


# The person's data: shown, exported, erased.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def person_data(request: Request) -> HttpResponse:
    """Show the data kept about the user; a POST with the own username deletes the
    account.

    It first requires the password, so an open browser is not enough.
    """
    if request.method != "POST":
        return _show(request, request.user)
    if request.POST.get("username") != request.user.username:
        refusal = (
            f"Not deleted. Type your username, {request.user.username}, to confirm."
        )
        return _show(request, request.user, refusal)
    raise_if_reauthentication_required(request, app="dashboard.operations")
    try:
        erase(User.objects.get(pk=request.user.pk))
    except ValueError as error:
        return _show(request, request.user, str(error))
    logout(request)
    messages.success(request, "Your account is deleted.")
    return redirect("sign_in")


@never_cache
@require_GET
def person_download(request: Request) -> JsonResponse:
    response = JsonResponse(
        export_of(request.user),
        encoder=Encoder,
        json_dumps_params={"indent": 1, "ensure_ascii": False},
    )
    response["Content-Disposition"] = 'attachment; filename="my-data.json"'
    return response


def _show(request: Request, user: User, refusal: str = "") -> HttpResponse:
    context = {
        "counts": count_of(user),
        "reason": why_kept(user),
        "refusal": refusal,
    }
    status = 422 if refusal else 200
    return render(request, "operations/person.html", context, status=status)
