"""Under which names this server is reached: links to it lead behind the sign-in."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest


def own_hosts(request: HttpRequest) -> set[str]:
    return {request.get_host(), urlsplit(settings.PUBLIC_URL).netloc} - {""}
