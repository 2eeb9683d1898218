"""The public link: who makes it, what it shows, and what it keeps to itself."""

import re

import pytest
from django.http import HttpResponse
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team
from dashboard.accounts.services import digest
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import save_report
from dashboard.runs.models import Run
from tests.dashboard.analysis.reports.stories import (
    make_measured_run,
    make_other_run,
    make_report,
    make_sampled_group,
)
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
LINK = re.compile(r'value="http://testserver(/public/[\w-]{43}/)"')
TAG = re.compile(r"<([a-z][a-z0-9]*)")


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    run = make_measured_run(shared_team, state="queued", finished_at=None)  # it goes on
    make_sampled_group(run)
    return run


@pytest.fixture(scope="module")
def report(shared_team, shared_alice, run) -> Report:
    other = make_other_run(shared_team)
    text = f"""We saw [this](http://testserver/alpha/runs/{run.pk}/) and
[that](https://arxiv.org/abs/2402.03300).

::chart runs={run.pk},{other.pk}
::group run={run.pk} step=40 prompt=3 pin
::compare runs={run.pk},{other.pk} metric=reward/mean
::table runs={run.pk}"""
    return make_report(shared_team, shared_alice, text)


def share(client: Client, report: Report, to: str) -> HttpResponse:
    return client.post(f"/alpha/reports/{report.pk}/share", {"to": to})  # type: ignore[return-value]


def publish(client: Client, report: Report) -> str:
    found = LINK.search(share(client, report, "public").text)
    assert found
    return found[1]


def test_a_public_link_works_until_it_is_revoked(alice_client, report):
    address = publish(alice_client, report)

    shown = PageClient().get(address)
    assert shown.status_code == 200
    assert "Findings" in shown.text
    assert shown.text.count("<figure") == 4
    token = address.split("/")[2]  # of which the hash is kept; it is shown once
    report.refresh_from_db()
    assert report.public_sha256 == digest(token)
    assert token not in str(list(Report.objects.values()))
    assert token not in str(list(AuditEntry.objects.values()))
    assert token not in alice_client.get(f"/alpha/reports/{report.pk}/").text

    share(alice_client, report, "team")

    assert PageClient().get(address).status_code == 404
    assert alice_client.get(address).status_code == 404


def test_a_new_link_ends_the_old_one(alice_client, report):
    first, second = (publish(alice_client, report) for _ in range(2))

    assert PageClient().get(first).status_code == 404
    assert PageClient().get(second).status_code == 200


def test_publishing_and_revoking_are_recorded(alice_client, bob_client, report):
    publish(alice_client, report)

    page = bob_client.get(f"/alpha/reports/{report.pk}/").text
    assert re.search(r"public</strong> since .*, by Alice", page)
    assert "with the link" in bob_client.get("/alpha/reports/").text
    share(alice_client, report, "team")

    entries = AuditEntry.objects.filter(object_id=report.pk).order_by("pk")
    assert [(e.verb, e.actor and e.actor.username) for e in entries] == [
        ("report.created", "alice"),
        ("report.published", "alice"),
        ("report.revoked", "alice"),
    ]


def test_the_public_page_leads_nowhere_runs_nothing_and_stays_out_of_caches(
    alice_client, report
):
    shown = PageClient().get(publish(alice_client, report))

    links = re.findall(r'(?:href|src|action|hx-[a-z]+)="([^"]*)"', shown.text)
    assert links == ["https://arxiv.org/abs/2402.03300"]
    assert "We saw this" in shown.text
    assert set(TAG.findall(shown.text)).isdisjoint(
        {"script", "form", "input", "button", "img", "iframe", "link", "object", "nav"}
    )
    for word in ("alpha", "Alpha", "Alice", "alice", "csrf"):
        assert word not in shown.text
    headers = shown.headers
    policy = headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "style-src 'sha256-", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "noindex" in headers["X-Robots-Tag"]
    assert "no-store" in headers["Cache-Control"]
    assert "Set-Cookie" not in headers


def test_a_live_block_shows_current_data(alice_client, alice, report, run):
    address = publish(alice_client, report)
    PageClient().get(address)

    text = f"::table runs={run.pk} metrics=kl/mean"
    save_report(report=report, user=alice, number=1, title="Newer findings", text=text)

    shown = PageClient().get(address).text
    assert "Newer findings" in shown
    assert shown.count("<figure") == 1


def test_no_other_address_opens_anything(alice_client, report):
    token = publish(alice_client, report).split("/")[2]
    report.refresh_from_db()

    for path in (
        f"{token}/../alpha/reports/",
        *(f"{token}x/", f"{token}/blocks/0", f"{token}/export.html", "/"),
        f"{report.public_sha256}/",  # as it is stored
    ):
        answer = PageClient().get(f"/public/{path}")

        assert answer.status_code in (302, 404), path
        assert "Findings" not in answer.text, path


def test_another_team_reaches_no_pin(charlie_client, charlie, report):
    own = make_report(Team.objects.get(slug="other"), charlie, "x", "Own")

    preview = charlie_client.post(
        "/other/reports/preview",
        {"report": report.pk, "text": "::group run=1 step=40 prompt=3 pin=1"},
    )
    assert preview.status_code == 404
    mine = charlie_client.post(
        "/other/reports/preview",
        {"report": own.pk, "text": "::group run=1 step=40 prompt=3 pin=1"},
    )
    assert "no pin 1" in mine.text


def test_user_text_is_escaped(alice_client, alice, team):
    run = make_run(team, HOSTILE[:80], summary={"last": {HOSTILE: 1.0}})
    make_group(run, step=1, texts=[HOSTILE] * 4, prompt=HOSTILE, answer=HOSTILE)
    metric = HOSTILE.replace(" ", "%20").replace("=", "%3D")
    text = f"""{HOSTILE} ${HOSTILE}$ [x](javascript:alert(1)) ![x](https://e.example/x)

::chart runs={run.pk} metric={metric}
::group run={run.pk} step=1 prompt=0
::compare runs={run.pk} metric={metric}
::table runs={run.pk} metrics={metric}
::chart runs={HOSTILE}"""
    report = make_report(team, alice, text, HOSTILE)
    address = f"/alpha/reports/{report.pk}/"
    pages = [
        PageClient().get(publish(alice_client, report)).text,
        *(
            alice_client.get(address + rest).text
            for rest in ("", "edit", "history?version=1", "export.html", "blocks/2")
        ),
        alice_client.post("/alpha/reports/preview", {"text": text}).text,
        alice_client.get(f"/alpha/reports/insert?kind=chart&runs={run.pk}").text,
    ]

    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "javascript:alert(1)" not in re.findall(r'href="([^"]*)"', page)
