"""Middleware: limits of bodies, charsets and methods, and security headers."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import is_valid_path, reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.defaults import page_not_found

# The largest file that a browser without scripts can send, and the form around it.
MAX_BODY_BYTES = 33 * 2**20
REFUSAL = (
    f"The request exceeds {MAX_BODY_BYTES:,} bytes, the maximum. Send a smaller "
    "file, or enable JavaScript.\n"
)
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
# A form may name any charset that Python knows, also one of no texts, as "hex".
TEXTS = ("utf-8", "ascii")
# Everything a page uses comes from Cohort itself.
POLICY = {
    "default-src": "'self'",
    "img-src": "'self' data: blob:",  # blob: a chart saved as a picture
    "style-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
# Addresses where tokens are read, and cookies are not.
PROGRAM_ADDRESSES = ("/mcp", "/mcp/")
_HOST_MARKS = str.maketrans({".": "a", ":": "a", "[": "a", "]": "a"})


def is_for_programs(path: str) -> bool:
    """Tell whether tokens are read at the address, and cookies are not."""
    return path.startswith("/api/") or path in PROGRAM_ADDRESSES


class Middleware(ABC):
    """Called in the thread of its request, as the view is."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    @abstractmethod
    def __call__(self, request: HttpRequest) -> HttpResponseBase: ...


class RefusedMethodMiddleware(Middleware):
    """The response to a method that an address does not accept, such as a reload of a
    form's address: Django's is a blank page.
    """

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        is_bare = not getattr(response, "content", b"-")
        if response.status_code == 405 and is_bare:
            allowed = response.headers["Allow"]
            explained = _answer_to(request, allowed)
            explained.headers["Allow"] = allowed
            return explained
        return response


def _answer_to(request: HttpRequest, allowed: str) -> HttpResponse:
    sentence = (
        f"{request.path} accepts {allowed}, not {request.method}. Nothing changed."
    )
    if request.htmx or "text/html" not in request.headers.get("Accept", ""):  # type: ignore[attr-defined]  # added by django-htmx
        if "json" in request.headers.get("Accept", "") or request.path.endswith("json"):
            return JsonResponse({"error": sentence}, status=405)
        return HttpResponse(f"{sentence}\n", status=405, content_type="text/plain")
    is_page = "GET" in allowed
    context = {
        "method": request.method,
        "is_page": is_page,
        "page": request.path if is_page else page_above(request.path),
    }
    return render(request, "405.html", context, status=405)


def page_above(path: str) -> str:
    """Return the page that an address belongs to: what a button sends to is below
    it.
    """
    parts = path.strip("/").split("/")
    while parts := parts[:-1]:
        above = "/" + "/".join(parts)
        for address in (above, f"{above}/"):
            if is_valid_path(address):
                return address
    return reverse("home")


# Where clients of MCP look for OAuth after a 401, and then read JSON.
PROBED = (
    r"\.well-known/oauth-(authorization-server|protected-resource)(/.*)?",
    r"\.well-known/openid-configuration(/.*)?",
    r"(mcp/)?\.well-known/openid-configuration",
    "(register|token|authorize)/?",
)


@csrf_exempt
@login_not_required
def answer_probe(request: HttpRequest, *_: str, **__: str) -> HttpResponse:
    return JsonResponse({"error": "not_found"}, status=404)


def handle_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a program in JSON, and a browser with a page."""
    accepted = request.headers.get("Accept", "")
    if "json" in accepted and "html" not in accepted:
        return answer_probe(request)
    return page_not_found(request, exception)


class BodyLimit:
    """Sends 413 for a body whose declared length is too large, and hangs up on one that
    grows too large.

    Under ASGI Django spools the whole body to disk before it authenticates, so anyone
    could fill the disk of the database.
    """

    def __init__(self, app: Any, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self.max_bytes:
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"connection", b"close"),
            ]
            await send(
                {"type": "http.response.start", "status": 413, "headers": headers}
            )
            await send({"type": "http.response.body", "body": REFUSAL.encode()})
            return
        num_bytes = 0

        async def receive_some() -> Any:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            # Django takes this for a disconnected client and deletes the rest.
            too_long = num_bytes > self.max_bytes
            return {"type": "http.disconnect"} if too_long else message

        await self.app(scope, receive_some, send)


def check_charset(request: HttpRequest) -> None:
    """BadRequest for a form with another charset; other bodies ignore it."""
    if request.content_type in FORMS and (name := _odd_charset(request)):
        raise BadRequest(
            f"The form's charset {name[:40]!r} is not supported. Send it as UTF-8."
        )


def _odd_charset(request: HttpRequest) -> str:
    name = (request.content_params or {}).get("charset", "utf-8")
    try:
        return "" if codecs.lookup(name).name in TEXTS else name
    except LookupError:
        return name


class CharsetMiddleware(Middleware):
    """The innermost, so that its rejections get the headers of the others."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if _odd_charset(request):
            request.encoding = "utf-8"  # the page that refuses it reads the form too
            # The API returns it as a problem: api/guards.py.
            if not is_for_programs(request.path_info):
                check_charset(request)
        return self.get_response(request)


def policy_for(host: str) -> str:
    """Sockets are named by host: older browsers do not count them into 'self'."""
    rules = {**POLICY, "connect-src": f"'self' ws://{host} wss://{host}"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


class TrustMiddleware(Middleware):
    """The content security policy, cookies of TLS that travel only encrypted, and no
    cache for what a person sees who has signed in.
    """

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        # The raw header: get_host() raises on a host that is refused anyway.
        host = request.META.get("HTTP_HOST", "")
        safe = host if host.replace("-", "a").translate(_HOST_MARKS).isalnum() else ""
        response.headers.setdefault("Content-Security-Policy", policy_for(safe))
        user = getattr(request, "_cached_user", None)  # only where a view loaded it
        if user is not None and user.is_authenticated:
            # After signing out, Back must not show it.
            response.headers.setdefault("Cache-Control", "private, no-store")
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response
