"""Reports by a program: written, read, shared, gone back with."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.api.models import Replay
from dashboard.reports.models import Report
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.reports.stories import make_measured_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def program(alice: User) -> Program:
    return Program(make_token(alice, "write"))


@pytest.fixture
def report(program: Program, team: Team) -> Any:
    run = make_measured_run(team)
    body = {"title": " Why  it rose ", "text": f"So:\n\n::table runs={run.pk}\n"}
    made = program.post("/reports", body)
    assert made.status_code == 201, made.text
    return made.json()


def test_a_report_is_written_and_found_by_its_words(
    program: Program, report: Any
) -> None:
    assert (report["title"], report["number"]) == ("Why it rose", 1)
    found = program.get("/reports?q=rose").json()
    assert [each["id"] for each in found["items"]] == [report["id"]]
    assert program.get("/reports?q=fell").json()["items"] == []


def test_a_report_needs_a_title(program: Program) -> None:
    refused = program.post("/reports", {"title": " ", "text": "x"})

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "body.title"


def test_what_a_report_shows_is_read_too(program: Program, report: Any) -> None:
    (block,) = program.get(f"/reports/{report['id']}/blocks").json()["items"]

    assert block["line"].startswith("::table")
    assert block["pinned_at"] is None
    assert block["problem"] == ""
    assert "calm-otter-1" in str(block["data"])


def test_a_text_is_tried_before_it_is_saved(program: Program, report: Any) -> None:
    found = program.post("/reports/blocks/preview", {"text": "::nothing x=1"}).json()

    (block,) = found["items"]
    assert block["problem"]
    assert Report.objects.count() == 1


def test_nobody_writes_over_what_they_have_not_seen(
    program: Program, report: Any
) -> None:
    address = f"/reports/{report['id']}"
    saved = program.patch(address, {"number": 1, "text": "Mine."})

    refused = program.patch(address, {"number": 1, "text": "Theirs."})

    assert saved.json()["number"] == 2
    assert saved.json()["title"] == "Why it rose"
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["field"] == "body.number"
    assert program.get(address).json()["text"] == "Mine."


def test_an_older_version_is_read_and_restored(program: Program, report: Any) -> None:
    address = f"/reports/{report['id']}"
    program.patch(address, {"number": 1, "text": "Worse."})

    versions = program.get(f"{address}/versions").json()
    first = program.get(f"{address}/versions/1").json()
    restored = program.post(f"{address}/versions/1/restore").json()

    assert [each["number"] for each in versions["items"]] == [2, 1]
    assert restored["text"] == first["text"] == report["text"]
    assert restored["number"] == 3
    assert program.get(f"{address}/versions/9").status_code == 404


def test_a_block_is_pinned_and_made_live_again(program: Program, report: Any) -> None:
    address = f"/reports/{report['id']}"

    pinned = program.post(f"{address}/blocks/0/pin", {"number": 1, "to": "pinned"})
    (block,) = program.get(f"{address}/blocks").json()["items"]
    program.post(f"{address}/blocks/0/pin", {"number": 2, "to": "live"})
    gone = program.post(f"{address}/blocks/7/pin", {"number": 3, "to": "live"})

    assert pinned.json()["number"] == 2
    assert block["pinned_at"]
    assert program.get(f"{address}/blocks").json()["items"][0]["pinned_at"] is None
    assert gone.status_code == 422


def test_a_public_link_is_given_once_and_revoked(
    program: Program, report: Any, client: Client
) -> None:
    address = f"/reports/{report['id']}/public-link"
    link = program.post(address, Idempotency_Key="k").json()["url"]
    again = program.post(address, Idempotency_Key="k").json()["url"]

    assert client.get(link).status_code == 200
    assert again is None
    assert link not in str(Replay.objects.values_list("body", flat=True))
    assert program.delete(address).json() == {"done": True, "detail": ""}
    assert client.get(link).status_code == 404
    assert program.delete(address).json()["done"] is False


def test_a_report_is_taken_as_a_page_and_deleted(program: Program, report: Any) -> None:
    address = f"/reports/{report['id']}"

    page = program.get(f"{address}/export.html")
    deleted = program.delete(address)

    assert b"Why it rose" in page.content
    assert "attachment" in page["Content-Disposition"]
    assert deleted.json()["done"] is True
    assert AuditEntry.objects.filter(verb="report.deleted").exists()
    assert program.get(address).status_code == 404
