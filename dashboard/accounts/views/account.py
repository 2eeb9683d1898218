"""A person's own page: what belongs to no team."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from dashboard.accounts.forms import ProfileForm
from dashboard.accounts.models import User


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    profile = _profile_form(request, request.user)
    password = _password_form(request, request.user)
    if profile.is_bound and profile.is_valid():
        profile.save()
        messages.success(request, "Saved.")
        return redirect("account")
    if password.is_bound and password.is_valid():
        # Otherwise the new password would end this very session.
        update_session_auth_hash(request, password.save())
        messages.success(request, "Your password is set.")
        return redirect("account")
    status = 422 if profile.is_bound or password.is_bound else 200
    context = {"profile": profile, "password": password}
    return render(request, "accounts/account.html", context, status=status)


def _profile_form(request: HttpRequest, user: User) -> ProfileForm:
    data = request.POST if request.POST.get("form") == "profile" else None
    # A copy: a refused name must not show up in the page's header.
    return ProfileForm(data, instance=User.objects.get(pk=user.pk))


def _password_form(
    request: HttpRequest, user: User
) -> PasswordChangeForm | SetPasswordForm[User]:
    data = request.POST if request.POST.get("form") == "password" else None
    if user.has_usable_password():
        return PasswordChangeForm(user, data)
    return SetPasswordForm(user, data)
