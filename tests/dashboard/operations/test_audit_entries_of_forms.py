"""Acts of people on what others made, and the entries that they leave."""

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from dashboard.accounts.models import AuditEntry
from dashboard.completions.models import Comment
from dashboard.datasets.imports import start_job, store_upload
from dashboard.datasets.mapping import Mapping
from dashboard.runs.models import SavedView
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.completions.factories import make_group, make_run


def verbs() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True))


def test_tags_and_comments_of_a_group(team, alice_client):
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    page = reverse("group_marks", args=["alpha", run.pk, 1, 0])

    for _ in range(2):  # the second time it is there already
        alice_client.post(page, {"tag": "reward hack"})
    alice_client.post(page, {"comment": "Look at this."})
    alice_client.post(page, {"judge": "good"})  # one's own opinion
    alice_client.post(page, {"uncomment": str(Comment.objects.get().pk)})
    for _ in range(2):
        alice_client.post(page, {"untag": "reward-hack"})

    assert verbs() == [
        *("group.tagged", "group.commented"),
        *("group.comment_deleted", "group.untagged"),
    ]
    first = AuditEntry.objects.order_by("pk")[0]
    assert first.detail == {"run": run.pk, "completion": None, "tag": "reward-hack"}


def test_a_report_that_is_saved(team, alice, alice_client):
    report = make_report(team, alice, "Text")
    given = {"base_version": report.number, "title": "Other", "text": "More"}

    alice_client.post(f"/alpha/reports/{report.pk}/edit", given)

    entry = AuditEntry.objects.get(verb="report.saved")
    assert entry.detail == {"title": "Other", "number": report.number + 1}


def test_the_teams_views_of_the_run_list_and_not_ones_own(team, alice_client):
    alice_client.post("/alpha/runs/views/", {"name": "Mine", "address": "q=a"})
    shared = {"name": "Ours", "address": "q=b", "shared": "1"}
    alice_client.post("/alpha/runs/views/", shared)
    page = f"/alpha/runs/views/{SavedView.objects.get(name='Ours').code}/change"
    alice_client.post(page, {"action": "rename", "name": "Ours"})  # no longer shared
    alice_client.post(page, {"action": "rename", "name": "Ours", "is_shared": "1"})
    alice_client.post(page, {"action": "delete"})

    assert verbs() == ["view.saved", "view.changed", "view.changed", "view.deleted"]


def test_a_cancelled_import(team, alice, alice_client):
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=alice, file=file, dataset=None)
    mapping = Mapping(prompt="prompt")
    job, _ = start_job(upload=upload, mapping=mapping, name="Rows", user=alice)

    for _ in range(2):
        alice_client.post(f"/alpha/datasets/imports/{job.pk}", {"stop": "1"})

    assert verbs() == ["import.stop_requested"]
