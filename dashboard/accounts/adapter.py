"""How django-allauth behaves here."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest

UNKNOWN_ADDRESS = "0.0.0.0"  # noqa: S104  # nothing listens there; the column takes no NULL


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # untyped
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """People come by invitation, whose page makes the account."""
        return False

    def send_mail(self, template_prefix: str, email: str, context: Any) -> None:
        if settings.MAIL_IS_SET_UP:
            super().send_mail(template_prefix, email, context)

    def get_client_ip(self, request: HttpRequest) -> str:
        """As the throttle knows it: uvicorn has looked through trusted proxies."""
        return address_of(request)


def address_of(request: HttpRequest) -> str:
    try:
        return str(ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:  # by a unix socket
        return UNKNOWN_ADDRESS
