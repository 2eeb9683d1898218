"""Idempotency-Key: who sends a POST again gets the first one's answer.

The key is kept in the transaction that does what was asked, so both are there or
neither, whatever dies; a second request waits for the first one's end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from dashboard.api.models import ApiToken, Replay
from dashboard.api.problems import refuse_field

HEADER = "Idempotency-Key"
MAX_KEY = 100
KEPT = timedelta(days=1)
FORGOTTEN_AT_ONCE = 100


def show_once(request: HttpRequest, field: str) -> None:
    """Within an operation: this field of the answer is kept for nobody's second look.

    Whoever asks again with the same key finds null there.
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
            f"{HEADER} has 1 to {MAX_KEY} printable ASCII characters; got "
            f"{key[:120]!r}. A UUID is a good one.",
        )
    digest = digest_of(request)
    _forget_old()
    with transaction.atomic():
        replay, is_new = Replay.objects.get_or_create(
            token=token, key=key, defaults={"request_sha256": digest}
        )
        if not is_new:
            return _answer_again(replay, digest)
        response = do()
        if response.status_code < 300 and isinstance(response, HttpResponse):
            replay.status = response.status_code
            replay.body = json.loads(response.content or "null")
            if shown_once := getattr(request, "api_shown_once", ""):
                replay.body[shown_once] = None
            replay.save(update_fields=["status", "body"])
        else:  # nothing was done, so the key is free for another try
            transaction.set_rollback(True)
        return response


def _answer_again(replay: Replay, digest: str) -> HttpResponse:
    if replay.request_sha256 != digest:
        raise refuse_field(
            f"header.{HEADER}",
            f"{HEADER} {replay.key!r} was sent before with another request, and what "
            "that asked for was done. Send another key with another request.",
        )
    text = "" if replay.body is None else json.dumps(replay.body)
    response = HttpResponse(
        text, status=replay.status, content_type="application/json; charset=utf-8"
    )
    response.headers["Idempotent-Replayed"] = "true"
    return response


def digest_of(request: HttpRequest) -> str:
    """Of what is asked; of a form its fields and files, however they are parted."""
    found = hashlib.sha256(f"{request.method} {request.get_full_path()}\n".encode())
    if request.content_type != "multipart/form-data":
        found.update(request.body)
        return found.hexdigest()
    for name, values in sorted(request.POST.lists()):
        found.update(json.dumps([name, values]).encode())
    for name, file in sorted(request.FILES.items()):
        found.update(json.dumps([name, getattr(file, "name", "")]).encode())
        for chunk in file.chunks():  # type: ignore[union-attr]  # one file by name
            found.update(chunk)
        file.seek(0)  # type: ignore[union-attr]  # as above
    return found.hexdigest()


def _forget_old() -> None:
    old = Replay.objects.filter(created_at__lt=timezone.now() - KEPT)
    oldest = old.order_by("created_at").values("pk")[:FORGOTTEN_AT_ONCE]
    Replay.objects.filter(pk__in=oldest).delete()
