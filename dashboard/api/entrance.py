"""What stands before each operation: token, limit, odd characters, replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from dashboard.api import limits
from dashboard.api.auth import Access, read_access
from dashboard.api.limits import Count, count_request
from dashboard.api.models import Scope
from dashboard.api.problems import Problem, answer, read_problem
from dashboard.api.replays import with_replay
from dashboard.api.tokens import note_use
from dashboard.project.budgets import network_of
from dashboard.project.middleware import check_charset

View = Callable[..., HttpResponseBase]


def entrance(view: View, *, is_atomic: bool = True) -> View:
    """No cookie lets anybody in here, so there is nothing that CSRF could use.

    `is_atomic`: what fails half-way has done nothing. A transaction keeps a database
    connection, also while a child is waited for.
    """

    @csrf_exempt
    @login_not_required
    @wraps(view)
    def enter(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        count = None
        try:
            access = read_access(request)
            request.api_access = access  # type: ignore[attr-defined]  # see auth.Bearer
            count = _count(request, access)
            response = _enter(
                request,
                access,
                count,
                lambda: view(request, *args, **kwargs),
                is_atomic=is_atomic,
            )
        except Exception as error:  # noqa: BLE001  # answered, and logged if it is ours
            response = answer(read_problem(request, error))
        return _with_headers(response, count)

    return enter


def _enter(
    request: HttpRequest,
    access: Access | None,
    count: Count | None,
    do: Callable[[], HttpResponseBase],
    *,
    is_atomic: bool,
) -> HttpResponseBase:
    if count and count.is_over:
        raise Problem(
            429,
            f"More than {count.limit} requests came within {limits.WINDOW_SECONDS} "
            f"seconds. Try again in {count.reset_seconds} s.",
            headers={"Retry-After": str(count.reset_seconds)},
        )
    check_charset(request)
    _refuse_nul(request)
    if access is None:
        return _explained(request, do())
    note_use(access.token)
    if request.method in ("GET", "HEAD", "OPTIONS"):
        is_atomic = False
    response = with_replay(request, access.token, lambda: _do(do, is_atomic=is_atomic))
    return _explained(request, response)


def _do(do: Callable[[], HttpResponseBase], *, is_atomic: bool) -> HttpResponseBase:
    if not is_atomic:
        return do()
    with transaction.atomic():
        response = do()
        if response.status_code >= 400:
            transaction.set_rollback(True)
    return response


def _count(request: HttpRequest, access: Access | None) -> Count | None:
    if access is None:
        address = network_of(request.META.get("REMOTE_ADDR", ""))
        return count_request(f"address:{address}", limits.MAX_OF_ADDRESS)
    is_ingest = access.token.scopes == [Scope.INGEST]
    most = limits.MAX_OF_INGEST if is_ingest else limits.MAX_OF_TOKEN
    return count_request(f"token:{access.token.pk}", most)


def _refuse_nul(request: HttpRequest) -> None:
    """PostgreSQL keeps none, and nobody means one."""
    if "\x00" in request.path:
        raise Problem(404, "There is no such address: it holds a NUL character.")
    for name, values in request.GET.lists():
        if any("\x00" in text for text in [name, *values]):
            message = "This holds a NUL character. Remove it."
            raise Problem(422, message, errors=[(f"query.{name}", message)])


def _explained(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if not isinstance(response, HttpResponseNotAllowed):
        return response
    allowed = response.headers["Allow"]
    sentence = f"{request.path} takes {allowed}, not {request.method}."
    return answer(Problem(405, sentence, headers={"Allow": allowed}))


def _with_headers(response: HttpResponseBase, count: Count | None) -> HttpResponseBase:
    response.headers.setdefault("Cache-Control", "no-store")
    for name, value in (count.headers if count else {}).items():
        response.headers[name] = value
    return response
