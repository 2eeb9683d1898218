"""The answer to a method that an address does not take, such as a reload of a button's.

Django's own is empty: a white page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import is_valid_path, reverse


class RefusedMethodMiddleware:
    """Works in both worlds, so that it costs no thread hop under ASGI."""

    sync_capable = True
    async_capable = True

    def __init__(
        self,
        get_response: Callable[
            [HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]
        ],
    ) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(
        self, request: HttpRequest
    ) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response = self.get_response(request)
        if isinstance(response, HttpResponseBase):
            return _explain(request, response) if _is_bare(response) else response
        return self._answer(request, response)

    async def _answer(
        self, request: HttpRequest, coming: Awaitable[HttpResponseBase]
    ) -> HttpResponseBase:
        response = await coming
        if not _is_bare(response):
            return response
        return await sync_to_async(_explain)(request, response)  # it asks for teams


def _is_bare(response: HttpResponseBase) -> bool:
    return response.status_code == 405 and not getattr(response, "content", b"-")


def _explain(request: HttpRequest, refusal: HttpResponseBase) -> HttpResponse:
    allowed = refusal.headers["Allow"]
    response = _answer_to(request, allowed)
    response.headers["Allow"] = allowed
    return response


def _answer_to(request: HttpRequest, allowed: str) -> HttpResponse:
    sentence = (
        f"{request.path} takes {allowed}, not {request.method}; nothing was done."
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
    """The page that an address belongs to: what a button sends to is below it."""
    parts = path.strip("/").split("/")
    while parts := parts[:-1]:
        above = "/" + "/".join(parts)
        for address in (above, f"{above}/"):
            if is_valid_path(address):
                return address
    return reverse("home")
