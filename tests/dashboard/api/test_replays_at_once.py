"""Two requests with one key at the same time: one is done, both get its answer."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory

from dashboard.api.guards import guarded
from tests.dashboard.api.asking import make_token

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_second_waits_for_the_first_and_does_nothing(alice):
    token = make_token(alice, "write")
    is_inside, may_go_on = Event(), Event()
    done: list[int] = []

    def view(request: HttpRequest) -> JsonResponse:
        is_inside.set()
        assert may_go_on.wait(30)
        done.append(1)
        return JsonResponse({"number": len(done)}, status=201)

    enter = guarded(view)

    def post() -> Any:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "a"}
        try:
            return enter(RequestFactory().post("/counts", headers=headers))
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post)
        assert is_inside.wait(30)
        second = pool.submit(post)
        wait_for_a_blocked_lock()
        may_go_on.set()
        answers = [first.result(30), second.result(30)]

    assert [json.loads(each.content) for each in answers] == [{"number": 1}] * 2
    assert done == [1]
    assert answers[1]["Idempotent-Replayed"] == "true"


def test_a_timed_out_replay_gets_retry_after(alice):
    """As in a web process, which waits for no lock longer than 3 s."""
    token = make_token(alice, "write")
    is_inside, may_go_on = Event(), Event()

    def view(request: HttpRequest) -> JsonResponse:
        is_inside.set()
        assert may_go_on.wait(30)
        return JsonResponse({}, status=201)

    enter = guarded(view)

    def post() -> Any:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "a"}
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '50ms'")
            return enter(RequestFactory().post("/counts", headers=headers))
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post)
        assert is_inside.wait(30)
        second = pool.submit(post).result(30)
        may_go_on.set()
        assert first.result(30).status_code == 201

    assert (second.status_code, second["Retry-After"]) == (409, "3")


def wait_for_a_blocked_lock() -> None:
    with connection.cursor() as cursor:
        for _ in range(3_000):
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # kept by a transaction
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
            if cursor.fetchone() != (0,):
                return
            cursor.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("The second request does not wait for the first.")
