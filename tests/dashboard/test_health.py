from __future__ import annotations

import pytest
from django.test import Client
from django.test.utils import override_settings


def test_a_living_process_says_so_without_a_database() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_it_is_ready_when_both_servers_answer() -> None:
    response = Client().get("/readyz")

    assert response.status_code == 200
    assert response.json() == {"database": True, "redis": True}


@pytest.mark.django_db
@override_settings(REDIS_URL="unix:///nowhere/redis.sock")
def test_it_is_not_ready_without_redis() -> None:
    response = Client().get("/readyz")

    assert response.status_code == 503
    assert response.json() == {"database": True, "redis": False}
