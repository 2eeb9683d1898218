"""Who is told of the server by address alone: /metrics and the details of /readyz."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from dashboard.observability.requests import is_of_this_machine

REFUSAL = (
    "This is told to programs on the server itself, or, where COHORT_METRICS_TOKEN is "
    "set, to whoever sends that token as “Authorization: Bearer …”.\n"
)


def may_see_server(request: HttpRequest) -> bool:
    """With a token set it is asked of everybody: a proxy on this machine that hides
    its visitors could otherwise lend them our own address."""
    if settings.METRICS_TOKEN:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        is_right = constant_time_compare(token.strip(), settings.METRICS_TOKEN)
        return kind.lower() == "bearer" and is_right
    return is_of_this_machine(
        request.META.get("REMOTE_ADDR", ""),
        request.META.get("HTTP_HOST", ""),
        [name.lower() for name in request.headers],
    )
