"""Reports by a program: written, read, shared, gone back with."""

from typing import Any

import pytest

from dashboard.accounts.models import AuditEntry
from tests.dashboard.analysis.reports.stories import make_measured_run


@pytest.fixture
def report(program, team) -> Any:
    run = make_measured_run(team)
    body = {"title": " Why  it rose ", "text": f"So:\n\n::table runs={run.pk}\n"}
    made = program.post("/reports", body)
    assert made.status_code == 201, made.text
    return made.json()


def test_a_report_is_written_and_found_by_its_words(program, report):
    assert (report["title"], report["number"]) == ("Why it rose", 1)
    found = program.get("/reports?q=rose").json()
    assert [each["id"] for each in found["items"]] == [report["id"]]
    assert program.get("/reports?q=fell").json()["items"] == []


def test_a_report_needs_a_title(program):
    refused = program.post("/reports", {"title": " ", "text": "x"})

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "body.title"


def test_unseen_values_are_not_overwritten(program, report):
    address = f"/reports/{report['id']}"
    saved = program.patch(address, {"number": 1, "text": "Mine."})

    refused = program.patch(address, {"number": 1, "text": "Theirs."})

    assert saved.json()["number"] == 2
    assert saved.json()["title"] == "Why it rose"
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["field"] == "body.number"
    assert program.get(address).json()["text"] == "Mine."


def test_a_report_is_taken_as_a_page_and_deleted(program, report):
    address = f"/reports/{report['id']}"

    page = program.get(f"{address}/export.html")
    deleted = program.delete(address)

    assert b"Why it rose" in page.content
    assert "attachment" in page["Content-Disposition"]
    assert deleted.json()["done"] is True
    assert AuditEntry.objects.filter(verb="report.deleted").exists()
    assert program.get(address).status_code == 404
