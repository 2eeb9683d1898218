from __future__ import annotations

from django.test import Client


def test_a_living_process_says_so_without_a_database() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}
