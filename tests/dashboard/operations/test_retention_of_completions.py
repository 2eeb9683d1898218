"""What retention deletes of runs that ended long ago, and that all else stays."""

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team
from dashboard.analysis.rescoring.services import select_steps
from dashboard.completions.models import CompletionBlock, Group, RuleNote, Tag, Thumb
from dashboard.completions.prompt_visits import Span, read_visits
from dashboard.completions.signals.composition import read_compositions
from dashboard.completions.signals.records import read_groups
from dashboard.operations.models import Retention
from dashboard.operations.quotas import measure
from dashboard.operations.retention import preview_completions, retain
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import (
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_note
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.stored import completions_of

STEPS = (1, 2, 3)  # of two groups of four completions each


@pytest.fixture(autouse=True)
def data(tmp_path, settings) -> Path:
    settings.COHORT_DATA = tmp_path
    return tmp_path


def ended(days: float) -> dict[str, Any]:
    now = timezone.now()
    return {
        "finished_at": now - timedelta(days=days),
        "created_at": now - timedelta(days=days + 1),
    }


def make_old_run(team: Team, days: float = 40, **fields: Any) -> Run:
    run = make_scored_run(team, num_steps=len(STEPS), **fields)
    with connection.cursor() as cursor:
        cursor.execute("SELECT config::text FROM runs_run WHERE id = %s", [run.pk])
        compositions = read_compositions(cursor.fetchone()[0])
    for step in STEPS:
        groups = read_groups(run.pk, step=step, attempt=1)
        make_rollup(run, step, groups, composition=compositions.at(step))
    make_blocks(run)
    Run.objects.filter(pk=run.pk).update(**ended(days))
    return Run.objects.get(pk=run.pk)


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_old_run(shared_team)


@pytest.fixture
def month(team) -> Retention:
    return Retention.objects.create(team=team, completion_days=30)


def num_of(run: Run) -> int:
    return len(completions_of(run))


def test_texts_go_and_groups_and_curves_stay(
    run, month, django_capture_on_commit_callbacks
):
    visits = read_visits(run, Span(first=1, last=3)).copy()
    make_note(Group.objects.filter(run=run)[0], "no number")
    log = run_directory(run.pk).attempt(1).events
    log.parent.mkdir(parents=True)
    log.write_text('{"text": "it must be 0"}\n')

    with django_capture_on_commit_callbacks(execute=True):
        retain()

    run.refresh_from_db()
    assert run.completions_deleted_at is not None
    assert (num_of(run), RuleNote.objects.filter(run=run).count()) == (0, 0)
    assert Group.objects.filter(run=run, reward_mean__isnull=False).count() == 6
    assert (read_visits(run, Span(first=1, last=3)) == visits).all()
    assert log.read_bytes() == b""
    entry = AuditEntry.objects.get(verb="run.completions_deleted")
    assert (entry.actor, entry.object_id) == (None, run.pk)
    assert entry.detail == {"name": run.name, "days": 30, "number": 24}


def test_annotated_completions_stay_and_are_found(run, month, alice, team):
    tagged, judged, *_ = Group.objects.filter(run=run).order_by("step", "prompt_index")
    Tag.objects.create(group=tagged, position=2, name="odd", user=alice)
    Thumb.objects.create(group=judged, position=1, user=alice, is_up=False)
    assert preview_completions(team, 30).num_kept_groups == 2

    retain()

    kept = [each.group_id for each in completions_of(run)]
    assert set(kept) == {tagged.pk, judged.pk}
    run.refresh_from_db()
    make_blocks(run)
    blocks = CompletionBlock.objects.filter(run=run)
    assert sum(blocks.values_list("num_completions", flat=True)) == 8
    assert select_steps(run, None, None, 1).steps == [1]
    assert select_steps(run, None, None, 1).num_completions == 8


def test_younger_locked_open_and_others_runs_keep_all(team, month, charlie):
    runs = [
        make_old_run(team, 29, name="young"),
        make_old_run(team, name="locked", locked_at=timezone.now()),
        make_old_run(charlie.teams.get(), name="of-others"),
        make_old_run(team, name="going"),
        make_old_run(team, name="rescored"),
    ]
    later = timezone.now() + timedelta(hours=1)
    Run.objects.filter(name="going").update(state="running", lease_until=later)
    start(runs[4])

    retain()

    assert [num_of(run) for run in runs] == [24] * 5


def test_by_default_completions_are_kept_permanently(run, team):
    Retention.objects.create(team=team, trash_days=7)

    retain()

    assert num_of(run) == 24


def test_the_preview_matches_what_is_deleted(run, team):
    shown = preview_completions(team, 30)

    texts = [each.text for each in completions_of(run)]
    assert [each.pk for each in shown.runs] == [run.pk]
    assert shown.num_completions == 24
    assert shown.num_bytes == sum(map(len, texts))
    assert preview_completions(team, 41).runs == []
    assert preview_completions(team, None).runs == []


def test_completions_of_an_extended_run_are_deleted_again(run, month, team):
    retain()
    assert preview_completions(team, 30).runs == []

    long_ago = timezone.now() - timedelta(days=35)
    Run.objects.filter(pk=run.pk).update(completions_deleted_at=long_ago, **ended(31))

    assert [each.pk for each in preview_completions(team, 30).runs] == [run.pk]


def test_a_block_that_is_being_made_meanwhile_is_not_kept(run, month, monkeypatch):
    from dashboard.completions.search import indexing

    CompletionBlock.objects.filter(run=run).delete()
    pack = indexing._pack

    def pack_late(*given: Any) -> CompletionBlock:
        block = pack(*given)
        retain()
        return block

    monkeypatch.setattr(indexing, "_pack", pack_late)
    assert make_blocks(run) == 0
    assert not CompletionBlock.objects.filter(run=run).exists()


def test_their_texts_count_as_storage(run, team, month):
    texts = [each.text for each in completions_of(run)]
    assert measure(team).parts["completions"] == sum(map(len, texts))

    retain()

    assert measure(team).parts["completions"] == 0


def test_every_page_of_the_run_reports_it_and_works(run, month, alice, alice_client):
    rescoring = see_through(start(run))
    report = make_report(run.team, alice, f"::group run={run.pk} step=1 prompt=1")
    retain()
    run.refresh_from_db()
    make_blocks(run)

    of_run = f"/alpha/runs/{run.pk}/"
    for page in ("", "metrics/", "groups/", "completions/", "prompts/", "health/"):
        shown = alice_client.get(of_run + page)
        assert shown.status_code == 200, page
        if page in ("", "groups/", "completions/"):
            assert "Completions were deleted" in shown.text, page
    for page in (
        f"{of_run}completions/?text=must",
        f"{of_run}prompts/1/",
        f"{of_run}prompts/?kind=solved",
        f"{of_run}reward-log/",
        f"{of_run}export/",
        f"{of_run}groups/1/1/?view=tokens",
        f"/alpha/compare/prompt?runs={run.pk},{run.pk}&prompt=1",
        f"/alpha/compare?runs={run.pk}",
        f"/alpha/rescorings/{rescoring.pk}/",
        f"/alpha/reports/{report.pk}/",
        f"/alpha/rescorings/new?run={run.pk}",
    ):
        assert alice_client.get(page).status_code == 200, page
    for file in (
        f"{of_run}export/completions.jsonl",
        f"{of_run}export/completions.csv",
        f"{of_run}export/preferences.jsonl",
        f"/alpha/rescorings/{rescoring.pk}/completions.jsonl",
    ):
        answer = alice_client.get(file)
        assert answer.status_code == 200, file
        io.BytesIO(b"".join(answer)).read()
    assert alice_client.get(f"{of_run}groups/1/1/").status_code == 200
    none_left = alice_client.get(f"{of_run}completions/")
    assert "Completions were deleted" in none_left.text


def test_an_admin_previews_then_keeps_the_number(run, alice_client):
    query = {"days": "30", "completion_days": "30"}
    page = alice_client.get("/alpha/settings/storage", query)
    assert "24 completions" in page.text
    assert "of 1 run." in page.text
    assert not Retention.objects.exists()

    saved = alice_client.post("/alpha/settings/storage", query, follow=True)

    assert "for 30 days" in saved.text
    assert Retention.objects.get().completion_days == 30
    entry = AuditEntry.objects.get(verb="team.retention_changed")
    assert entry.detail == {"kind": "completions", "before": None, "after": 30}


def test_changing_trash_days_keeps_completion_days(month, alice_client):
    alice_client.post("/alpha/settings/storage", {"days": "7"})
    month.refresh_from_db()
    assert (month.trash_days, month.completion_days) == (7, 30)

    empty = {"days": "7", "completion_days": ""}
    alice_client.post("/alpha/settings/storage", empty)
    month.refresh_from_db()
    assert month.completion_days is None


def test_an_odd_number_of_days_is_refused(month, alice_client):
    for days in ("0", "-1", "3651", "x"):
        given = {"days": "30", "completion_days": days}
        page = alice_client.post("/alpha/settings/storage", given)

        assert page.status_code == 422, days
        assert "field-error" in page.text, days
        month.refresh_from_db()
        assert month.completion_days == 30
