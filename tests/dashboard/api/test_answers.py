"""Responses of the API: problems, limits, pages, replays."""

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory
from django.utils import timezone

from dashboard.accounts.throttling import redis_client
from dashboard.api import guards
from dashboard.api.guards import guarded
from dashboard.api.models import Replay
from dashboard.api.problems import Problem
from dashboard.api.schemas import read_cursor, write_cursor
from tests.dashboard.api.asking import Program, make_token, token_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "admin"))


def test_an_unknown_address_is_a_problem_too(program):
    found = program.get("/nothing/here")

    assert found.status_code == 404
    assert found["Content-Type"] == "application/problem+json"
    assert found.json()["type"] == "urn:cohort:problem:not_found"
    assert found.json()["code"] == "not_found"
    assert "/api/v1/nothing/here" in found.json()["detail"]


def test_a_refused_method_names_the_allowed_ones(program):
    found = program.post("/me")

    assert (found.status_code, found["Allow"]) == (405, "GET")


def test_a_wrong_value_is_named_by_its_field(program):
    found = program.get("/tokens?limit=1000")

    assert found.status_code == 422
    (error,) = found.json()["errors"]
    assert (error["field"], error["code"]) == ("query.limit", "less_than_equal")
    assert "200" in error["message"]


def test_an_invalid_cursor_is_rejected(program):
    for cursor in ["x", "é", "djE6", "djI6MQ", write_cursor(2**70)]:
        found = program.get(f"/tokens?cursor={cursor}")

        assert found.status_code == 422, cursor
        assert found.json()["errors"][0]["field"] == "query.cursor", cursor


def test_cursors_come_back_as_they_were():
    assert [read_cursor(write_cursor(n)) for n in (0, 7, 2**63 - 1)] == [
        0,
        7,
        2**63 - 1,
    ]


def test_pages_neither_repeat_nor_hide(program, alice):
    texts = [make_token(alice, name=f"t{i}") for i in range(4)]
    seen: list[int] = []
    cursor = ""
    while True:
        page = program.get(f"/tokens?limit=2&cursor={cursor}").json()
        seen += [each["id"] for each in page["items"]]
        make_token(alice)  # one comes meanwhile
        if not (cursor := page["next_cursor"]):
            break

    mine = token_of(program.headers["Authorization"][7:]).pk
    assert seen == sorted([*(token_of(text).pk for text in texts), mine], reverse=True)


def test_a_nul_character_is_rejected_before_any_query(program):
    found = program.get("/tokens?cursor=%00")

    assert found.status_code == 422
    assert found.json()["errors"][0]["field"] == "query.cursor"


def test_every_response_has_rate_limit_headers(program, monkeypatch):
    monkeypatch.setattr(guards, "MAX_OF_TOKEN", 2)
    monkeypatch.setattr(guards, "WINDOW_SECONDS", 10**9)

    found = [program.get("/me") for _ in range(3)]

    assert [each.status_code for each in found] == [200, 200, 429]
    assert [each["RateLimit-Remaining"] for each in found] == ["1", "0", "0"]
    assert {each["RateLimit-Limit"] for each in found} == {"2"}
    assert int(found[2]["Retry-After"]) > 0
    assert "More than 2 requests" in found[2].json()["detail"]


def test_requests_without_token_are_counted_by_address(db, monkeypatch):
    monkeypatch.setattr(guards, "MAX_OF_ADDRESS", 1)
    monkeypatch.setattr(guards, "WINDOW_SECONDS", 10**9 + 7)
    redis_client().flushdb()

    assert [Program().get("/me").status_code for _ in range(2)] == [401, 429]


def test_without_redis_nothing_is_counted_and_all_is_answered(program, monkeypatch):
    nowhere = redis.Redis.from_url("unix:///nowhere/redis.sock")
    monkeypatch.setattr("dashboard.accounts.throttling.redis_client", lambda: nowhere)

    found = program.get("/me")

    assert found.status_code == 200
    assert "RateLimit-Limit" not in found.headers


def test_an_internal_error_is_logged_and_reveals_nothing(program, monkeypatch, caplog):
    def fail(*_: Any) -> None:
        raise RuntimeError("password is hunter2")

    monkeypatch.setattr("dashboard.api.members.list_tokens", fail)

    found = program.get("/tokens")

    assert found.status_code == 500
    assert "hunter2" not in found.text
    assert "hunter2" in caplog.text
    assert program.headers["Authorization"][7:] not in caplog.text


class Counting:
    """A view behind the entrance, of which each POST that is done adds a number."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.enter = guarded(self._view)

    def _view(self, request: HttpRequest) -> JsonResponse:
        number = json.loads(request.body)["number"]
        if number < 0:
            raise Problem(409, "Not now.")
        self.done.append(number)
        return JsonResponse({"number": number}, status=201)

    def post(self, token: str, number: int, key: str) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
        request = RequestFactory().post(
            "/counts",
            json.dumps({"number": number}),
            content_type="application/json",
            headers=headers,
        )
        return self.enter(request)


@pytest.fixture
def token(alice) -> str:
    return make_token(alice, "write")


def test_a_repeated_key_gets_the_first_response(token):
    counting = Counting()

    found = [counting.post(token, 7, "a") for _ in range(2)]

    assert [each.status_code for each in found] == [201, 201]
    assert [json.loads(each.content) for each in found] == [{"number": 7}] * 2
    assert counting.done == [7]
    assert "Idempotent-Replayed" not in found[0].headers
    assert found[1]["Idempotent-Replayed"] == "true"


def test_a_key_is_good_for_one_request(token):
    counting = Counting()
    counting.post(token, 7, "a")

    refused = counting.post(token, 8, "a")

    assert refused.status_code == 422
    (error,) = json.loads(refused.content)["errors"]
    assert error["field"] == "header.Idempotency-Key"
    assert counting.done == [7]


def test_a_key_is_its_tokens_own(token, alice):
    counting = Counting()

    counting.post(token, 7, "a")
    counting.post(make_token(alice, "write"), 8, "a")

    assert counting.done == [7, 8]


def test_a_refused_request_leaves_its_key_free(token):
    counting = Counting()

    found = [counting.post(token, number, "a").status_code for number in (-1, 1)]

    assert found == [409, 201]
    assert Replay.objects.count() == 1


def test_a_key_is_forgotten_after_a_day(token):
    counting = Counting()
    counting.post(token, 7, "a")
    Replay.objects.update(created_at=timezone.now() - timedelta(days=2))

    counting.post(token, 8, "a")

    assert counting.done == [7, 8]


def test_an_invalid_key_is_rejected(token):
    for key in ["", "x" * 101, "tab\tbed"]:
        counting = Counting()

        assert counting.post(token, 7, key).status_code == 422, key
        assert counting.done == [], key
