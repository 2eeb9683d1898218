"""Signing in and out; a person's account, sessions, and the data kept about them."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import urlsplit

from allauth.account.app_settings import EmailVerificationMethod
from allauth.account.internal.flows.login import perform_password_login
from allauth.account.internal.flows.logout import logout
from allauth.account.internal.flows.reauthentication import (
    raise_if_reauthentication_required,
)
from allauth.account.models import EmailAddress, Login
from allauth.socialaccount.forms import DisconnectForm
from django.conf import settings
from django.contrib import auth, messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
)
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import (
    require_GET,
    require_http_methods,
    require_POST,
    require_safe,
)
from requests.exceptions import ConnectionError, RequestException, SSLError, Timeout

from dashboard.accounts.adapters import (
    describe_factors,
    list_connections,
    provider_address,
)
from dashboard.accounts.forms import FirstPasswordForm, PasswordForm, ProfileForm
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import (
    consume_sign_in_link,
    find_sign_in_link,
    record_in_teams,
)
from dashboard.accounts.sessions import (
    end_others,
    end_session,
    find_device,
    list_sessions,
    remember_device,
    remember_session,
)
from dashboard.accounts.throttling import TooManyTries, count_try, reset_tries
from dashboard.observability.requests import is_of_this_machine
from dashboard.operations.personal_data import (
    Encoder,
    count_of,
    erase,
    export_of,
    why_kept,
)
from dashboard.pages.requests import Request, redirect_with
from dashboard.runs.models import HELD, Run
from dashboard.web.edits import (
    BASE,
    EditConflict,
    merge_saved,
    show_conflict,
    version_of_form,
)


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Open the person's newest run in training, else the list of runs."""
    team = Team.objects.filter(members=request.user.pk).order_by("name").first()
    if team is None:
        return render(request, "accounts/no_team.html", status=403)
    live = Run.objects.kept().filter(
        owner=request.user.pk, team__members=request.user.pk, state__in=HELD
    )
    newest = live.select_related("team").order_by("-pk").first()
    if newest is not None:
        return redirect("run", newest.team.slug, newest.pk)
    return redirect("runs", team.slug)


@login_not_required
@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    url = request.POST.get("next") or request.GET.get("next") or ""
    allowed = url_has_allowed_host_and_scheme(
        url, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    next_url = url if allowed else "/"
    if request.user.is_authenticated:
        # Not with redirect(), which takes a single word for a URL name.
        return HttpResponseRedirect(next_url)
    if elsewhere := _at_localhost(request):
        return HttpResponseRedirect(elsewhere)
    form = AuthenticationForm(request, data=request.POST or None)
    username = request.POST.get("username", "")
    who = {
        "username": username,
        "address": request.META.get("REMOTE_ADDR", ""),
        "device": find_device(request, username),
    }
    context: dict[str, Any] = {"form": form, "next": next_url}
    if form.is_bound:
        try:
            count_try(**who)
        except TooManyTries as refusal:
            context |= {"form": AuthenticationForm(request), "refusal": refusal}
            page = render(request, "accounts/sign_in.html", context, status=429)
            page.headers["Retry-After"] = str(refusal.seconds)
            return page
        if form.is_valid():
            reset_tries(**who)
            user = form.get_user()
            attempt = Login(
                user=user,
                email_verification=EmailVerificationMethod.NONE,
                redirect_url=next_url,
            )
            # It redirects to the page for the second factor if there is one.
            response: HttpResponse = perform_password_login(
                request, {"username": user.username}, attempt
            )
            remember_device(response, user)
            return response
    return render(
        request, "accounts/sign_in.html", context, status=422 if form.is_bound else 200
    )


def _at_localhost(request: HttpRequest) -> str:
    """This page at localhost, for a person who came by 127.0.0.1; else "".

    Cookies differ between the two. Sign-in links use localhost, where alone passkeys
    work, and a script could not follow to another origin.
    """
    here = urlsplit(request.build_absolute_uri())
    if (
        settings.IS_FOR_THIS_MACHINE
        and here.hostname in ("127.0.0.1", "::1")
        and request.method == "GET"
        and request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        and is_of_this_machine(
            request.META.get("REMOTE_ADDR", ""),
            request.get_host(),
            (header.lower() for header in request.headers),
        )
    ):
        port = f":{here.port}" if here.port else ""  # of a tunnel, not of this server
        return here._replace(netloc=f"localhost{port}").geturl()
    return ""


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """Sign in; a GET only shows a button: programs that prefetch links must not use
    them up.
    """
    if request.method == "POST":
        user = consume_sign_in_link(token)
        if user is None:
            return render(request, "accounts/sign_in_link_used.html", status=410)
        return sign_user_in(request, user, reverse("home"))
    link = find_sign_in_link(token)
    if link is not None:
        return render(request, "accounts/sign_in_link.html", {"link": link})
    if request.user.is_authenticated:
        return redirect("home")
    return render(request, "accounts/sign_in_link_used.html", status=410)


def sign_user_in(request: HttpRequest, user: User, url: str) -> HttpResponse:
    """Sign in without a second factor:

    anyone who can print links has access to the whole database.
    """
    auth.login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    remember_session(request)
    response = HttpResponseRedirect(url)
    remember_device(response, user)
    return response


@login_not_required
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out; also cancels sign-in at the second factor."""
    logout(request, show_message=False)
    return redirect("sign_in")


# Accounts elsewhere.


@login_not_required
@never_cache
@require_POST
def provider_go(request: HttpRequest, provider: str) -> HttpResponse:
    """Show a link: the CSP lets no form lead to another site, nor its redirects.

    Only by POST, or another site could make someone connect a foreign account.
    """
    process = "connect" if request.user.is_authenticated else "login"
    if process == "connect":
        raise_if_reauthentication_required(request, app="allauth.socialaccount")
    context = {"provider": settings.SIGN_IN_PROVIDERS.get(provider, provider)}
    try:
        address = provider_address(request, provider, process=process)
    except RequestException as error:
        trouble = {**context, "trouble": _trouble(error)}
        return render(request, "accounts/provider.html", trouble, status=502)
    context |= {"address": address, "host": urlsplit(address).netloc}
    return render(request, "accounts/provider.html", context)


def _trouble(error: RequestException) -> str:
    match error:
        case SSLError():
            return "its certificate is not trusted"
        case Timeout():
            return "it timed out"
        case ConnectionError():
            return "the connection failed"
    return "its discovery document is invalid"


@require_POST
def provider_remove(request: HttpRequest, pk: int) -> HttpResponse:
    form = DisconnectForm(data={"account": pk}, request=request)
    if form.is_valid():
        form.save()
    for errors in form.errors.values():
        messages.error(request, " ".join(map(str, errors)))
    return redirect("account")


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
        return redirect_with(request, "Saved.", "account")
    if password.is_bound and password.is_valid():
        # Otherwise the new password would end this very session.
        auth.update_session_auth_hash(request, password.save())
        remember_session(request)
        record_in_teams(request.user, "person.password_changed")
        return redirect_with(request, "Your password is set.", "account")
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
    return redirect_with(request, "Session ended.", "account")


@require_POST
def sessions_end(request: Request) -> HttpResponse:
    ended = end_others(request, request.user)
    return redirect_with(
        request, f"{ended} other session{'s' * (ended != 1)} ended.", "account"
    )


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
    auth.logout(request)
    return redirect_with(request, "Your account is deleted.", "sign_in")


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
    return render(
        request, "operations/person.html", context, status=422 if refusal else 200
    )
