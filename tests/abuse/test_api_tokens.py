"""API tokens that are leaked, misplaced or guessed."""

import json
import logging
import urllib.error
import urllib.request
from typing import Any

import pytest
from django.http.response import HttpResponseBase

from dashboard.accounts.throttling import redis_client
from dashboard.api import guards
from dashboard.runs.models import Run
from tests.dashboard.api.asking import BASE, Program, make_token
from tests.dashboard.api.test_external_runs import body_of, open_one, send_events
from tests.dashboard.completions.factories import make_run
from tests.dashboard.supervision.logs import LogBuilder


def detail_of(answer: HttpResponseBase) -> str:
    return str(json.loads(answer.content)["detail"])  # type: ignore[attr-defined]  # not streamed


@pytest.mark.django_db(transaction=True)
def test_a_token_is_never_logged(live_app, alice, web_processes):
    text = make_token(alice, "read")
    bearer = {"Authorization": f"Bearer {text}"}
    requests: list[tuple[str, dict[str, str], bytes | None]] = [
        ("/me", bearer, None),
        ("/runs?limit=x", bearer, None),
        (f"/me?token={text}", {}, None),
        (f"/runs/{text}", {}, None),
        (f"/{text}", bearer, None),
        ("/rescorings", bearer, b"{"),
        ("/me", {"Authorization": f"Basic {text}"}, None),
        ("/me", {"Cookie": f"cohort_session={text}"}, None),
    ]

    statuses = []
    for path, headers, body in requests:
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{live_app}{BASE}{path}", data=body, headers=headers
        )
        try:
            with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
                statuses.append(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                statuses.append(error.code)

    assert statuses == [200, 422, 401, 401, 404, 403, 401, 401]
    assert text not in web_processes.log.read_text()


def test_an_error_is_logged_without_the_token(alice, monkeypatch, caplog):
    from dashboard.api import members

    text = make_token(alice)
    monkeypatch.setattr(members.Person, "of", lambda user: 1 / 0)

    with caplog.at_level(logging.DEBUG):
        answer = Program(text).get("/me")

    assert answer.status_code == 500
    assert "ZeroDivisionError" in caplog.text
    assert text not in caplog.text + answer.content.decode()


def test_token_guesses_are_throttled_by_network(alice, monkeypatch):
    monkeypatch.setattr(guards, "MAX_OF_ADDRESS", 2)
    monkeypatch.setattr(guards, "WINDOW_SECONDS", 10**9 + 9)
    redis_client().flushdb()

    def guess(address: str, text: str = "cohort_guess") -> int:
        headers = {"Authorization": f"Bearer {text}"}
        at = Program().client.get(f"{BASE}/me", headers=headers, REMOTE_ADDR=address)
        return int(at.status_code)

    found = [guess(f"2001:db8::{n:x}") for n in range(1, 4)]

    assert found == [401, 401, 429]
    assert guess("2001:db8:0:1::1") == 401
    assert guess("2001:db8::1", make_token(alice)) == 200


def test_a_flood_of_one_token_does_not_block_others(alice, monkeypatch):
    monkeypatch.setattr(guards, "MAX_OF_INGEST", 2)
    monkeypatch.setattr(guards, "WINDOW_SECONDS", 10**9 + 11)
    flood, other = (Program(make_token(alice, "ingest")) for _ in range(2))

    assert [open_one(flood).status_code for _ in range(3)] == [201, 201, 429]
    assert open_one(other).status_code == 201
    assert Run.objects.count() == 3


def test_an_ended_run_accepts_no_events(alice):
    program = Program(make_token(alice, "ingest"))
    run = open_one(program).json()["id"]
    log = LogBuilder().stepped(1).finished(1)
    assert send_events(program, run, body_of(log)).json()["state"] == "finished"
    before = Run.objects.values().get()

    more = send_events(program, run, b'{"type": "step_finished"}\n', first=5)
    again = send_events(program, run, body_of(log))

    assert (more.status_code, again.status_code) == (409, 200)
    assert "finished" in detail_of(more)
    assert Run.objects.values().get() == before


def test_events_for_other_runs_are_refused(alice, charlie, team):
    theirs = open_one(Program(make_token(charlie, "ingest"))).json()["id"]
    ours = make_run(team)
    program = Program(make_token(alice, "ingest", "write"))
    body = body_of(LogBuilder().stepped(1))

    for run in (theirs, ours.pk, 2**63 - 1):
        assert send_events(program, run, body).status_code == 404
        assert program.get(f"/external-runs/{run}/events").status_code == 404
        attempt = program.post(f"/external-runs/{run}/attempts", {"from_step": 0})
        assert attempt.status_code == 404
    assert set(Run.objects.values_list("last_step", flat=True)) <= {0, ours.last_step}


NESTED = [60, 600, 990, 20_000]


@pytest.mark.parametrize(
    "settings",
    [
        *('{"a":' * depth + "1" + "}" * depth for depth in NESTED),
        *("[" * depth + "]" * depth for depth in NESTED),
        '{"a": 1e400, "b": -1e400, "c": NaN}', '{"a": ' + "9" * 4_000 + "}",
        '{"a": "\\ud800"}', '{"\\u0000": 1}', '{"a": 1, "a": 2}', '{"": null}',
    ],
    ids=lambda text: f"{text[:12]} of {len(text)}",
)  # fmt: skip
def test_any_settings_get_a_response_and_are_shown(settings, alice):
    program = Program(make_token(alice, "ingest"))
    tree = open_body(settings)

    found: Any = program.client.post(
        f"{BASE}/external-runs", tree, "application/json", headers=program.headers
    )

    assert found.status_code in (201, 400, 422), found.content
    if found.status_code == 201:
        browser = Program().client
        browser.force_login(alice)
        for page in ("", "config/"):
            answer = browser.get(f"/alpha/runs/{found.json()['id']}/{page}")
            assert answer.status_code == 200, page


def open_body(settings: str) -> str:
    key = "0b6ac47e-7e2c-4a39-9f4e-1b1c2d3e4f50"
    return f'{{"key": "{key}", "name": "r", "tool": "TRL", "settings": {settings}}}'
