"""What every response tells the browser about trust.

Everything a page uses comes from Cohort itself, and what arrived encrypted leaves
cookies that travel only encrypted.
"""

from __future__ import annotations

from collections.abc import Awaitable

from django.http import HttpRequest, HttpResponseBase

from dashboard.both_worlds import BothWorlds

POLICY = {
    "default-src": "'self'",
    "img-src": "'self' data: blob:",  # blob: a chart saved as a picture
    "style-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


def policy_for(host: str) -> str:
    """Sockets are named by host: older browsers do not count them into 'self'."""
    rules = {**POLICY, "connect-src": f"'self' ws://{host} wss://{host}"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


class TrustMiddleware(BothWorlds):
    def __call__(
        self, request: HttpRequest
    ) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response = self.get_response(request)
        if isinstance(response, HttpResponseBase):
            return _protect(request, response)
        return self._answer(request, response)

    async def _answer(
        self, request: HttpRequest, response: Awaitable[HttpResponseBase]
    ) -> HttpResponseBase:
        return _protect(request, await response)


def _protect(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    # The raw header: get_host() raises on a host that is refused anyway.
    host = request.META.get("HTTP_HOST", "")
    safe = host if host.replace("-", "a").translate(_HOST_MARKS).isalnum() else ""
    response.headers.setdefault("Content-Security-Policy", policy_for(safe))
    if request.is_secure():
        for cookie in response.cookies.values():
            cookie["secure"] = True
    return response


_HOST_MARKS = str.maketrans({".": "a", ":": "a", "[": "a", "]": "a"})
