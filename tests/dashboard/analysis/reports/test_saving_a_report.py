"""Saving: versions, what someone else saved meanwhile, limits, restoring."""

from django.test import Client

from dashboard.accounts.models import AuditEntry
from dashboard.analysis.reports import services
from dashboard.analysis.reports.models import Pin, Report
from dashboard.analysis.reports.services import MAX_BLOCKS, MAX_CHARS, save_report
from tests.dashboard.analysis.reports.stories import make_measured_run, make_report


def edit(client: Client, report: Report, **fields: object):  # type: ignore[no-untyped-def]
    form = {"title": report.title, "text": report.text, "base_version": report.number}
    return client.post(f"/alpha/reports/{report.pk}/edit", {**form, **fields})


def test_a_report_is_written_and_found(alice_client, team):
    made = alice_client.post(
        "/alpha/reports/new", {"title": " Length\n penalty ", "text": "It\r\nhelps. \n"}
    )
    report = Report.objects.get()

    assert made.headers["Location"] == f"/alpha/reports/{report.pk}/"
    assert (report.title, report.text, report.number) == (
        "Length penalty",
        "It\nhelps.",
        1,
    )
    for found, words in ((True, "length"), (True, "HELPS penalty"), (False, "kl")):
        page = alice_client.get("/alpha/reports/", {"q": words}).text
        assert ("Length penalty" in page) is found


def test_a_concurrent_save_is_shown_and_kept(alice_client, alice, bob, team):
    report = make_report(team, alice, "First\nsecond")
    opened = report.number
    save_report(report=report, user=bob, number=1, title="Theirs", text="First\nof Bob")

    refused = edit(alice_client, report, text="First\nof Alice", base_version=opened)

    assert refused.status_code == 409
    assert refused.context["conflict"]["saved_by"] == bob
    assert "<del>− of Bob</del>" in refused.text
    assert "<ins>+ of Alice</ins>" in refused.text
    assert refused.context["form"]["text"] == "First\nof Alice"
    report.refresh_from_db()
    assert report.text == "First\nof Bob"

    saved = edit(
        alice_client,
        report,
        text="First\nof Alice",
        base_version=refused.context["form"]["number"],
    )

    assert saved.status_code == 302
    texts = report.versions.order_by("number").values_list("text", flat=True)
    assert list(texts) == ["First\nsecond", "First\nof Bob", "First\nof Alice"]


def test_too_much_is_refused_and_nothing_is_lost(alice_client, alice, team):
    report = make_report(team, alice, "Text")
    for name, value, expected in (
        ("title", "  ", "title"),
        ("title", "x" * 161, "has 161"),
        ("text", "x" * (MAX_CHARS + 1), f"has {MAX_CHARS + 1:,}"),
        ("text", "::table runs=1\n" * (MAX_BLOCKS + 1), "30 blocks"),
    ):
        refused = edit(alice_client, report, **{name: value})

        assert refused.status_code == 400, expected
        assert expected in refused.text
        assert refused.context["form"][name].strip() == value.strip()
    report.refresh_from_db()
    assert report.number == 1


def test_nul_characters_are_left_out(alice_client, team):
    alice_client.post("/alpha/reports/new", {"title": "a\0b", "text": "c\0d"})

    assert Report.objects.values_list("title", "text").get() == ("ab", "cd")


def test_an_old_version_is_read_and_restored(alice_client, alice, team):
    report = make_report(team, alice, "Old")
    edit(alice_client, report, text="New", title="Newer")

    shown = alice_client.get(f"/alpha/reports/{report.pk}/history?version=1").text
    assert "<del>− Old</del>" in shown
    assert "<ins>+ New</ins>" in shown
    alice_client.post(f"/alpha/reports/{report.pk}/restore", {"version": 1})

    report.refresh_from_db()
    assert (report.title, report.text, report.number) == ("Findings", "Old", 3)
    assert report.versions.count() == 3


def test_a_version_that_is_not_kept_is_not_found(alice_client, alice, team):
    report = make_report(team, alice, "Text")

    for version in ("0", "9", "x", "-1", "9" * 30):
        address = f"/alpha/reports/{report.pk}/history?version={version}"
        assert alice_client.get(address).status_code == 404, version


def test_old_versions_go_with_the_pins_that_only_they_name(alice, team, monkeypatch):
    monkeypatch.setattr(services, "MAX_VERSIONS", 2)
    run = make_measured_run(team)
    report = make_report(team, alice, f"::table runs={run.pk} pin")
    texts = [f"::table runs={run.pk} pin", "no block", "still none"]

    for number, text in enumerate(texts, start=1):
        save_report(
            report=report, user=alice, number=number, title="Findings", text=text
        )

    assert sorted(report.versions.values_list("number", flat=True)) == [3, 4]
    assert not Pin.objects.exists()


def test_a_deleted_report_is_in_the_audit_log(alice_client, alice, team):
    report = make_report(team, alice, "Text", "Gone soon")

    alice_client.post(f"/alpha/reports/{report.pk}/delete")

    assert not Report.objects.exists()
    assert AuditEntry.objects.filter(
        verb="report.deleted", detail={"title": "Gone soon"}
    ).exists()
