"""Signing in by an account elsewhere: OpenID Connect, GitHub, Google, where set up."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.socialaccount.adapter import DefaultSocialAccountAdapter, get_adapter
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.signals import (
    social_account_added,
    social_account_removed,
)
from django.conf import settings
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse

from dashboard.accounts.models import User
from dashboard.accounts.noting import note

View = Callable[..., HttpResponseBase]


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # untyped
    """Accounts elsewhere only let in who is here already: people come by invitation."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("account")


def address_elsewhere(request: HttpRequest, key: str, *, process: str) -> str:
    """Where the provider asks the person; Http404 where it is not set up here.

    Raises:
        requests.RequestException: the provider cannot be asked where that is.
    """
    if key not in settings.SIGN_IN_PROVIDERS:
        raise Http404("No such provider.")
    provider = get_adapter().get_provider(request, key)
    answer = provider.redirect(request, process=process)
    return str(answer.headers["Location"])


def only_where_set_up(key: str, view: View) -> View:
    @wraps(view)  # keeps that it takes no sign-in
    def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if key not in settings.SIGN_IN_PROVIDERS:
            raise Http404("No such provider.")
        return view(request, **kwargs)

    return guarded


def list_connections(user: User) -> list[tuple[int, str, str]]:
    """Of each: its number, the provider's name, and who the person is there."""
    found = SocialAccount.objects.filter(user=user).order_by("pk")
    return [(one.pk, _name(one.provider), who_is(one)) for one in found]


def who_is(account: SocialAccount) -> str:
    data = account.extra_data
    data = {**data, **data.get("id_token", {}), **data.get("userinfo", {})}
    names = ("preferred_username", "login", "email", "name")
    return str(next((data[name] for name in names if data.get(name)), account.uid))


def _name(key: str) -> str:
    return str(settings.SIGN_IN_PROVIDERS.get(key, key))


@receiver(social_account_added)
def account_connected(*, sociallogin: Any, **_kwargs: Any) -> None:
    note(sociallogin.user, "person.provider_added", kind=sociallogin.account.provider)


@receiver(social_account_removed)
def account_disconnected(*, socialaccount: Any, **_kwargs: Any) -> None:
    note(socialaccount.user, "person.provider_removed", kind=socialaccount.provider)
