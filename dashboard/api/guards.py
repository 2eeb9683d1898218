"""The guards before each operation: token, rate limit, odd characters, idempotency."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from dashboard.accounts.throttling import count
from dashboard.api.auth import Access, note_use, read_access
from dashboard.api.models import ApiToken, Replay, Scope
from dashboard.api.problems import (
    Problem,
    answer,
    read_problem,
    refuse_field,
)
from dashboard.datasets.limits import is_disk_full
from dashboard.web.budgets import network_of
from dashboard.web.middleware import check_charset

View = Callable[..., HttpResponseBase]
WINDOW_SECONDS = 60
MAX_OF_TOKEN = 600
MAX_OF_INGEST = 1_200  # a trainer that reports each step, of several runs
MAX_OF_ADDRESS = 60  # without a token that works
HEADER = "Idempotency-Key"
MAX_KEY = 100
REPLAY_AGE = timedelta(days=1)
PURGE_BATCH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    limit: int
    remaining: int
    reset_seconds: int
    is_over: bool

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_seconds),
        }


def count_request(who: str, most: int) -> Count | None:
    """Count one more request of `who`; None if Redis does not answer."""
    counted = count(f"cohort:api:{who}", within_seconds=WINDOW_SECONDS)
    if counted is None:
        return None
    return Count(
        limit=most,
        remaining=max(0, most - counted.number),
        reset_seconds=counted.seconds_left,
        is_over=counted.number > most,
    )


# Idempotency-Key: who sends a POST again gets the first one's answer.
#
# The key is stored in the transaction of the operation, so both are committed or
# neither; a second request waits for the end of the first.


def show_once(request: HttpRequest, field: str) -> None:
    """Within an operation: do not store this field of the response.

    A repeated request with the same key gets null there.
    """
    request.api_shown_once = field  # type: ignore[attr-defined]  # read by with_replay


def with_replay(
    request: HttpRequest, token: ApiToken, do: Callable[[], HttpResponseBase]
) -> HttpResponseBase:
    key = request.headers.get(HEADER)
    if request.method != "POST" or key is None:
        return do()
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise refuse_field(
            f"header.{HEADER}",
            f"{HEADER} must have 1 to {MAX_KEY} printable ASCII characters; got "
            f"{key[:120]!r}. Use a UUID.",
            "idempotency.bad_key",
        )
    return replay_once(
        token, key, digest_of(request), do, shown_once=partial(_shown_once, request)
    )


def _shown_once(request: HttpRequest) -> str:
    return getattr(request, "api_shown_once", "")


def replay_once(
    token: ApiToken,
    key: str,
    digest: str,
    do: Callable[[], HttpResponseBase],
    *,
    shown_once: Callable[[], str] = str,
) -> HttpResponseBase:
    """Do it once a key; a repeated request gets the first response.

    `digest`: of the request, which may not differ.
    """
    if is_disk_full():
        raise Problem(
            429,
            f"The server's disk is full, so it cannot keep the reply to this {HEADER}. "
            f"Try again later, or leave out {HEADER}.",
            code="disk_full",
            headers={"Retry-After": str(WINDOW_SECONDS)},
        )
    old = Replay.objects.filter(created_at__lt=timezone.now() - REPLAY_AGE)
    oldest = old.order_by("created_at").values("pk")[:PURGE_BATCH]
    Replay.objects.filter(pk__in=oldest).delete()
    with transaction.atomic():
        replay, is_new = Replay.objects.get_or_create(
            token=token, key=key, defaults={"request_sha256": digest}
        )
        if not is_new:
            return _replay(replay, digest)
        response = do()
        if response.status_code < 300 and isinstance(response, HttpResponse):
            replay.status = response.status_code
            replay.body = json.loads(response.content or "null")
            if field := shown_once():
                replay.body[field] = None
            replay.save(update_fields=["status", "body"])
        else:  # nothing was done, so the key is free for another try
            transaction.set_rollback(True)
        return response


def _replay(replay: Replay, digest: str) -> HttpResponse:
    if replay.request_sha256 != digest:
        raise refuse_field(
            f"header.{HEADER}",
            f"{HEADER} {replay.key!r} was already used for a different request. "
            "Use a new key for a new request.",
            "idempotency.key_reused",
        )
    text = "" if replay.body is None else json.dumps(replay.body)
    response = HttpResponse(
        text, status=replay.status, content_type="application/json; charset=utf-8"
    )
    response.headers["Idempotent-Replayed"] = "true"
    return response


def digest_of(request: HttpRequest) -> str:
    """Hash of the request; of a form its fields and files, however they are encoded."""
    digest = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    if request.content_type != "multipart/form-data":
        digest.update(request.body)
        return digest.hexdigest()
    for name, values in sorted(request.POST.lists()):
        digest.update(json.dumps([name, values]).encode())
    for name, file in sorted(request.FILES.items()):
        digest.update(json.dumps([name, getattr(file, "name", "")]).encode())
        for chunk in file.chunks():  # type: ignore[union-attr]  # one file by name
            digest.update(chunk)
        file.seek(0)  # type: ignore[union-attr]  # as above
    return digest.hexdigest()


def guarded(view: View, *, is_atomic: bool = True) -> View:
    """Cookies do not authenticate here, so CSRF has nothing to exploit.

    `is_atomic`: a failed operation changes nothing. A transaction keeps a database
    connection, also while a child is waited for.
    """

    @csrf_exempt
    @login_not_required
    @wraps(view)
    def guarded_view(
        request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        count = None
        try:
            access = read_access(request)
            request.api_access = access  # type: ignore[attr-defined]  # see auth.Bearer
            count = _count(request, access)
            response = _handle(
                request,
                access,
                count,
                lambda: view(request, *args, **kwargs),
                is_atomic=is_atomic,
            )
        except Exception as error:  # noqa: BLE001  # answered, and logged if it is ours
            response = answer(read_problem(request, error))
        response.headers.setdefault("Cache-Control", "no-store")
        for name, value in (count.headers if count else {}).items():
            response.headers[name] = value
        return response

    return guarded_view


def _handle(
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
            f"More than {count.limit} requests within {WINDOW_SECONDS} s. Try "
            f"again in {count.reset_seconds} s.",
            headers={"Retry-After": str(count.reset_seconds)},
        )
    check_charset(request)
    # PostgreSQL text cannot contain it.
    if "\x00" in request.path:
        raise Problem(404, "Address not found: it contains a NUL character.")
    for name, values in request.GET.lists():
        if any("\x00" in text for text in [name, *values]):
            message = "The value contains a NUL character. Remove it."
            raise refuse_field(f"query.{name}", message, "nul_character")
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
        return count_request(f"address:{address}", MAX_OF_ADDRESS)
    is_ingest = access.token.scopes == [Scope.INGEST]
    most = MAX_OF_INGEST if is_ingest else MAX_OF_TOKEN
    return count_request(f"token:{access.token.pk}", most)


def _explained(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if not isinstance(response, HttpResponseNotAllowed):
        return response
    allowed = response.headers["Allow"]
    sentence = f"{request.path} accepts {allowed}, not {request.method}."
    return answer(Problem(405, sentence, headers={"Allow": allowed}))
