from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connection


@pytest.mark.django_db
def test_the_embedded_role_is_not_a_superuser() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rolname, rolsuper FROM pg_roles WHERE rolname=current_user"
        )
        assert cursor.fetchone() == ("cohort", False)


def test_redis_answers() -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.ping()
