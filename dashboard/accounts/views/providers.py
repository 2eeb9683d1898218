"""To an account elsewhere and back."""

from __future__ import annotations

from urllib.parse import urlsplit

from allauth.account.internal.flows.reauthentication import (
    raise_if_reauthentication_required,
)
from allauth.socialaccount.forms import DisconnectForm
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from requests.exceptions import (
    ConnectionError,
    RequestException,
    SSLError,
    Timeout,
)

from dashboard.accounts.adapters import address_elsewhere


@login_not_required
@never_cache
@require_POST
def provider_go(request: HttpRequest, provider: str) -> HttpResponse:
    """A page with a link: the policy lets no form lead elsewhere, nor its redirects.

    By POST, or another site could have somebody connect an account that is not theirs.
    """
    process = "connect" if request.user.is_authenticated else "login"
    if process == "connect":
        raise_if_reauthentication_required(request, app="allauth.socialaccount")
    context = {"provider": settings.SIGN_IN_PROVIDERS.get(provider, provider)}
    try:
        address = address_elsewhere(request, provider, process=process)
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
            return "it did not answer in time"
        case ConnectionError():
            return "no connection came about"
    return "it answered with something else than its addresses"


@require_POST
def provider_remove(request: HttpRequest, pk: int) -> HttpResponse:
    form = DisconnectForm(data={"account": pk}, request=request)
    if form.is_valid():
        form.save()
    for errors in form.errors.values():
        messages.error(request, " ".join(map(str, errors)))
    return redirect("account")
