"""Signing in and out: by password, by a link, by an account elsewhere."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from allauth.account.app_settings import EmailVerificationMethod
from allauth.account.internal.flows.login import perform_password_login
from allauth.account.internal.flows.logout import logout
from allauth.account.internal.flows.reauthentication import (
    raise_if_reauthentication_required,
)
from allauth.account.models import Login
from allauth.socialaccount.forms import DisconnectForm
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from requests.exceptions import ConnectionError, RequestException, SSLError, Timeout

from dashboard.accounts.adapters import provider_address
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import consume_sign_in_link, find_sign_in_link
from dashboard.accounts.sessions import find_device, remember_device, remember_session
from dashboard.accounts.throttling import TooManyTries, count_try, reset_tries
from dashboard.observability.requests import is_of_this_machine
from dashboard.runs.models import HELD, Run


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
    status = 422 if form.is_bound else 200
    return render(request, "accounts/sign_in.html", context, status=status)


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
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
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
