"""How django-allauth behaves here."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest

from dashboard.accounts.letters import link, send_behind

UNKNOWN_ADDRESS = "0.0.0.0"  # nosec B104 # noqa: S104 - named only: nothing listens there


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # untyped
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """People come by invitation, whose page makes the account."""
        return False

    def send_mail(self, template_prefix: str, email: str, context: Any) -> None:
        if settings.MAIL_IS_SET_UP:
            send = super().send_mail
            send_behind(lambda: send(template_prefix, email, context))

    def get_reset_password_from_key_url(self, key: str) -> str:
        return link(self.request, super().get_reset_password_from_key_url(key))

    def get_email_confirmation_url(
        self, request: HttpRequest, emailconfirmation: Any
    ) -> str:
        found = super().get_email_confirmation_url(request, emailconfirmation)
        return link(request, found)

    def get_client_ip(self, request: HttpRequest) -> str:
        """As the throttle knows it: uvicorn has looked through trusted proxies."""
        return address_of(request)


def address_of(request: HttpRequest) -> str:
    try:
        return str(ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:  # by a unix socket, and the session's column takes no NULL
        return UNKNOWN_ADDRESS
