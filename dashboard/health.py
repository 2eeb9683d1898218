"""Whether this process lives, and whether it can serve."""

from __future__ import annotations

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from redis.backoff import NoBackoff
from redis.retry import Retry


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """503 with the part that is missing, when pages could not be served whole."""
    parts = {"database": _database_answers(), "redis": _redis_answers()}
    status = 200 if all(parts.values()) else 503
    return JsonResponse(parts, status=status)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _redis_answers() -> bool:
    at_once = Retry(NoBackoff(), 0)
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=2, retry=at_once
        ) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
