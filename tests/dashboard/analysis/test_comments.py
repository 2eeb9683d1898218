"""Comments on runs and reports: written, read, deleted, and kept within the team."""

import json
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Membership, User
from dashboard.analysis.comments import (
    MAX_COMMENTS,
    add_comment,
    comments_on,
    mentions_of,
)
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import delete_report, publish
from dashboard.completions.annotations import Target
from dashboard.completions.models import MAX_COMMENT_CHARS, Comment, Mention
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.runs.trash import delete_run
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient

KINDS = ("run", "report")
HTMX = {"HX-Request": "true"}


@pytest.fixture
def run(team) -> Run:
    return make_run(team, "calm-otter")


@pytest.fixture
def report(team, alice) -> Report:
    return make_report(team, alice, "It rose.")


@pytest.fixture
def dora(team) -> User:
    dora = User.objects.create_user("dora.k")
    Membership.objects.create(user=dora, team=team)
    return dora


@pytest.fixture
def targets(run, report) -> dict[str, Run | Report]:
    return {"run": run, "report": report}


def page_of(target: Run | Report) -> str:
    kind = "runs" if isinstance(target, Run) else "reports"
    return f"/alpha/{kind}/{target.pk}/"


def client_of(user: User) -> PageClient:
    client = PageClient()
    client.force_login(user)
    return client


@pytest.mark.parametrize("kind", KINDS)
def test_a_comment_stands_on_the_page_of_its_target(alice_client, targets, kind):
    page = page_of(targets[kind])

    sent = alice_client.post(f"{page}comments", {"comment": "<b>Why</b>\r\n@bob?"})

    comment = Comment.objects.get()
    assert (comment.text, comment.user.username) == ("<b>Why</b>\n@bob?", "alice")
    assert sent.headers["Location"] == f"{page}#comments"
    text = alice_client.read(page)
    assert f'id="comment-{comment.pk}"' in text
    assert f'href="#comment-{comment.pk}"' in text
    assert "&lt;b&gt;Why&lt;/b&gt;" in text


def test_every_page_of_a_run_counts_its_comments(alice_client, alice, run):
    group = make_group(run, step=1, prompt_index=0)
    add_comment(alice, Target(group, 0), "Of a group")
    hidden = '#comments" hidden>'
    assert hidden in alice_client.read(page_of(run))

    for text in ("one", "two"):
        add_comment(alice, run, text)

    for page in ("", "metrics/", "config/"):
        text = alice_client.read(page_of(run) + page)
        assert f'href="{page_of(run)}#comments">2 comments<' in text, page
        assert hidden not in text, page


def test_the_section_is_swapped_with_the_count(alice_client, run):
    answer = alice_client.post(
        f"{page_of(run)}comments", {"comment": "Look."}, headers=HTMX
    )

    assert answer.status_code == 200
    assert 'id="comments" data-thread' in answer.text
    assert 'hx-swap-oob="true">1 comment<' in answer.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_comment_stays_in_the_field(alice_client, alice, targets, kind):
    page, text = page_of(targets[kind]), "x" * (MAX_COMMENT_CHARS + 1)

    answer = alice_client.post(f"{page}comments", {"comment": text}, headers=HTMX)

    assert f">{text}</textarea>" in answer.text
    assert 'role="alert"' in answer.text
    assert not Comment.objects.exists()
    assert alice_client.post(f"{page}comments").status_code == 302
    Comment.objects.bulk_create(
        Comment(**{kind: targets[kind]}, text="x") for _ in range(MAX_COMMENTS)
    )
    with pytest.raises(UserError) as error:
        add_comment(alice, targets[kind], "One more")
    assert error.value.code == "samples.too_many_comments"


@pytest.mark.parametrize("kind", KINDS)
def test_only_its_author_deletes_a_comment(alice_client, dora, targets, kind):
    page = f"{page_of(targets[kind])}comments"
    alice_client.post(page, {"comment": "Mine"})
    comment = Comment.objects.get()
    named = {"uncomment": str(comment.pk)}

    client_of(dora).post(page, named)
    assert Comment.objects.exists()
    alice_client.post(page, named)

    assert not Comment.objects.exists()
    entries = AuditEntry.objects.filter(verb__contains=".comment").order_by("pk")
    values = list(entries.values_list("verb", "object_id", "detail__comment"))
    assert values == [
        (f"{kind}.commented", targets[kind].pk, comment.pk),
        (f"{kind}.comment_deleted", targets[kind].pk, comment.pk),
    ]


def test_a_comment_is_deleted_only_on_its_own_target(alice_client, alice, targets):
    add_comment(alice, targets["run"], "Of the run")
    sent = {"uncomment": str(Comment.objects.get().pk)}

    alice_client.post(f"{page_of(targets['report'])}comments", sent)
    alice_client.post(f"{page_of(make_run(alice.teams.get(), 'other'))}comments", sent)

    assert Comment.objects.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_viewers_read_and_others_do_not(
    alice, bob_client, charlie_client, targets, kind
):
    page = page_of(targets[kind])
    assert 'id="comments"' not in bob_client.read(page)
    add_comment(alice, targets[kind], "Within the team")

    assert "Within the team" in bob_client.read(page)
    assert 'name="comment"' not in bob_client.read(page)
    sent = {"comment": "Mine"}
    assert bob_client.post(f"{page}comments", sent).status_code == 403
    assert charlie_client.post(f"{page}comments", sent).status_code == 404
    elsewhere = page.replace("alpha", "other")
    assert charlie_client.post(f"{elsewhere}comments", sent).status_code == 404
    assert Comment.objects.count() == 1


def test_strangers_see_no_comments_of_a_public_report(alice_client, alice, report):
    add_comment(alice, report, "Between us")
    token = publish(report=report, user=alice)

    public = PageClient().get(f"/public/{token}/")
    file = alice_client.get(f"{page_of(report)}export.html")

    assert (public.status_code, file.status_code) == (200, 200)
    for text in (public.text, file.content.decode()):
        assert "It rose." in text
        assert "Between us" not in text
        assert "omment" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_notified_member_is_led_to_the_comment(alice, dora, targets, kind):
    add_comment(alice, targets[kind], "@dora.k look")
    address = f'href="{page_of(targets[kind])}#comment-{Comment.objects.get().pk}"'
    client = client_of(dora)

    assert 'data-news="1"' in client.read("/alpha/runs/")
    assert address in client.read("/alpha/notifications")
    listed = client.read("/alpha/mentions/")
    assert address in listed
    assert str(targets[kind]) in listed
    assert 'data-news="0"' in client.read("/alpha/runs/")


def test_mentions_are_of_their_team_and_of_runs_that_are_kept(
    alice, charlie, dora, targets, team
):
    other = charlie.teams.get()
    Membership.objects.create(user=dora, team=other)
    for target in targets.values():
        add_comment(alice, target, "@dora.k here")

    assert mentions_of(dora, team).count() == 2
    assert mentions_of(dora, other).count() == 0
    text = client_of(dora).read("/other/runs/")
    assert 'data-news="0"' in text

    Run.objects.filter(pk=targets["run"].pk).update(deleted_at=timezone.now())

    (kept,) = mentions_of(dora, team)
    assert kept.comment.report == targets["report"]
    assert 'data-news="1"' in client_of(dora).read("/alpha/runs/")


def test_comments_go_with_their_target(alice, dora, targets):
    for target in targets.values():
        add_comment(alice, target, "@dora.k here")

    delete_report(report=targets["report"], user=alice)

    (comment,) = comments_on(targets["run"])
    assert [m.comment for m in Mention.objects.all()] == [comment]
    Run.objects.filter(pk=targets["run"].pk).update(trashed_at=timezone.now())
    delete_run(targets["run"], alice)
    assert not Comment.objects.exists()
    assert not Mention.objects.exists()


def test_a_comment_has_exactly_one_target(run, report):
    group = make_group(run, step=1, prompt_index=0)
    Comment.objects.create(group=group, position=0, text="x")
    refused: list[dict[str, Any]] = [
        {},
        {"run": run, "report": report},
        {"group": group, "run": run},
        {"group": group, "run": run, "report": report},
        {"run": run, "position": 0},
        {"report": report, "position": 0},
    ]

    for fields in refused:
        with pytest.raises(IntegrityError, match="one_target"), transaction.atomic():
            Comment.objects.create(**fields, text="x")


def test_comments_of_a_run_are_not_of_its_groups(alice_client, alice, run):
    make_group(run, step=1, prompt_index=0)
    add_comment(alice, run, "Of the run")

    text = alice_client.read(f"{page_of(run)}groups/1/0/")
    found = alice_client.get(f"{page_of(run)}completions/?mark=any")

    assert "Of the run" not in text
    assert found.context["completions"] == []


def test_comments_of_a_run_are_exported_before_its_annotations(
    alice_client, alice, run
):
    assert "what=annotations" not in alice_client.read(f"{page_of(run)}export/")
    add_comment(alice, run, "Of the run")
    group = make_group(run, step=1, prompt_index=0)
    add_comment(alice, Target(group, None), "Of the group")

    answer = alice_client.get(f"{page_of(run)}export/annotations.jsonl")

    lines = [json.loads(line) for line in answer.getvalue().decode().splitlines()]
    places = [(line["run_id"], line["step"], line["position"]) for line in lines]
    assert places == [(run.pk, None, None), (run.pk, 1, None)]
    texts = [line["comments"][0]["text"] for line in lines]
    assert texts == ["Of the run", "Of the group"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_lists_comments_by_pages(alice, charlie, targets, kind):
    for text in ("one", "two", "three"):
        add_comment(alice, targets[kind], text)
    path = f"/{kind}s/{targets[kind].pk}/comments"
    program = Program(make_token(alice))

    first = program.read(f"{path}?limit=2")
    rest = program.read(f"{path}?limit=2&cursor={first['next_cursor']}")

    assert [each["text"] for each in first["items"]] == ["one", "two"]
    assert first["total"] == 3
    (last,) = rest["items"]
    comment = Comment.objects.get(text="three")
    assert (last["id"], last["by"], last["text"]) == (comment.pk, "alice", "three")
    assert rest["next_cursor"] is None
    assert Program(make_token(charlie)).get(path).status_code == 404


@pytest.mark.slow
def test_the_release_before_gets_its_comments_back(alice, targets):
    group = make_group(targets["run"], step=1, prompt_index=0)
    for target in (*targets.values(), Target(group, 0)):
        add_comment(alice, target, "@bob look")
    connection.check_constraints()  # else the tables are not to be altered
    before, newest = ("samples", "0004_mismatch"), MigrationExecutor(connection)

    newest.migrate([before])

    with connection.cursor() as cursor:
        cursor.execute("SELECT group_id, position FROM samples_comment")
        assert cursor.fetchall() == [(group.pk, 0)]
        cursor.execute("SELECT count(*) FROM samples_mention")
        assert cursor.fetchone() == (1,)
    again = MigrationExecutor(connection)
    again.migrate(again.loader.graph.leaf_nodes("samples"))
    assert Comment.objects.get().group == group
