"""Parts of an ended run's pages that are kept: never another reader's, never old."""

import re
import time

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import Membership, Role
from dashboard.analysis.comments import add_comment, delete_comment
from dashboard.completions.annotations import Target
from dashboard.completions.models import Comment, Group
from dashboard.completions.search.indexing import index_run
from dashboard.project.cache import ByteCache
from dashboard.runs.models import Checkpoint, Run, RunState
from dashboard.web import fragments
from tests.dashboard.completions.factories import (
    make_checkpoint,
    make_group,
    make_run,
    make_steps,
)

PART = {"HTTP_HX_REQUEST": "true", "HTTP_HX_TARGET": "group-pane"}
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')
ANY_TOKEN = re.compile(r"\b\w{64}\b")


@pytest.fixture
def run(team) -> Run:
    return make_run(team, last_step=5)


@pytest.fixture
def group(run) -> Group:
    return make_group(run, step=5, prompt_index=4, texts=["a", "b"], rewards=(1.2, 0.2))


@pytest.fixture
def rendered(monkeypatch) -> list[str]:
    """The templates that were rendered and not taken from the cache."""
    names = []
    render = fragments.render_to_string

    def count(template, *args):
        names.append(template)
        return render(template, *args)

    monkeypatch.setattr(fragments, "render_to_string", count)
    return names


def read(client: Client, group: Group, **headers: str) -> str:
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    return client.get(reverse("group", args=at), **headers).content.decode()


def search(client: Client, run: Run, query: str = "") -> str:
    address = reverse("completions", args=["alpha", run.pk])
    return client.get(address + query).content.decode()


def test_an_ended_runs_group_and_search_are_rendered_once(
    alice_client, group, rendered
):
    first = [read(alice_client, group), search(alice_client, group.run)]
    again = [read(alice_client, group), search(alice_client, group.run)]

    assert rendered == ["completions/reader.html", "completions/search.html"]
    assert [ANY_TOKEN.sub("", page) for page in first] == [
        ANY_TOKEN.sub("", page) for page in again
    ]


def test_a_live_runs_group_is_rendered_each_time(alice_client, team, rendered):
    live = make_run(team, state=RunState.QUEUED, started_at=None, finished_at=None)
    group = make_group(live, step=5, prompt_index=4)

    read(alice_client, group)
    read(alice_client, group)

    assert len(rendered) == 2


def test_comments_appear_and_disappear_at_once(alice_client, alice, group):
    read(alice_client, group)
    search(alice_client, group.run)
    add_comment(alice, Target(group, 1), "This is odd.")

    assert "This is odd." in read(alice_client, group)
    assert "1 comment" in search(alice_client, group.run)

    delete_comment(alice, Target(group, 1), str(Comment.objects.get().pk))

    assert "This is odd." not in read(alice_client, group)
    assert "1 comment" not in search(alice_client, group.run)


def test_a_deleted_checkpoint_is_no_longer_the_best(alice_client, run):
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3, 0.4, 0.9]})
    run.refresh_from_db()
    kept = [make_checkpoint(run, step) for step in (2, 4)]
    address = reverse("run", args=["alpha", run.pk])
    before = alice_client.read(address)
    Checkpoint.objects.filter(pk=kept[1].pk).update(deleted_at=timezone.now())

    after = alice_client.read(address)

    assert "data-result-score>0.4<" in before
    assert "data-result-score>0.2<" in after


def test_a_new_name_is_shown_at_once(alice_client, group):
    read(alice_client, group, **PART)
    Run.objects.filter(pk=group.run_id).update(name="renamed")

    assert "<title>Prompt 4 at step 5, renamed" in read(alice_client, group, **PART)


def test_a_superseded_group_is_marked_at_once(alice_client, group):
    read(alice_client, group)
    Group.objects.filter(pk=group.pk).update(superseded_by=2)
    Run.objects.filter(pk=group.run_id).update(attempt=2)

    assert "data-superseded" in read(alice_client, group)


def test_new_blocks_are_searched_at_once(alice_client, group):
    run = group.run
    before = search(alice_client, run, "?surprise=near")
    index_run(run, until=time.monotonic() + 60)

    after = search(alice_client, run, "?surprise=near")

    assert "not yet computed" in before
    assert "not yet computed" not in after


def test_a_part_and_its_page_have_separate_entries(alice_client, group):
    assert 'id="reader"' in read(alice_client, group)
    assert 'id="reader"' not in read(alice_client, group, **PART)


def test_who_loses_a_right_loses_its_forms(alice_client, alice, group):
    assert 'name="judge"' in read(alice_client, group)
    Membership.objects.filter(user=alice).update(role=Role.VIEWER)

    assert 'name="judge"' not in read(alice_client, group)


def test_who_is_in_no_team_of_the_run_is_served_nothing(
    alice_client, charlie_client, alice, group
):
    read(alice_client, group)
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    Membership.objects.filter(user=alice).delete()

    for client in (alice_client, charlie_client):
        assert client.get(reverse("group", args=at)).status_code == 404


def test_each_reader_has_their_own_name_and_token(alice_client, bob_client, bob, group):
    Membership.objects.filter(user=bob).update(role=Role.MEMBER)
    read(alice_client, group)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = bob_client.cookies

    page = read(strict, group)
    tokens = set(TOKEN.findall(page))
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    answers = [
        strict.post(
            reverse("group_marks", args=at),
            {"judge": "good", "csrfmiddlewaretoken": token},
        )
        for token in sorted(tokens)
    ]

    assert "<strong>Bob</strong>" in page
    assert "Alice" not in page
    assert fragments.TOKEN not in page
    assert [answer.status_code for answer in answers] == [302] * len(tokens)


def test_a_cache_drops_what_was_used_longest_ago():
    cache = ByteCache[bytes](max_bytes=5, size=len)

    def get(key: str) -> list[str]:
        """The keys that had to be read."""
        missing = []
        cache.get([key], lambda keys: missing.extend(keys) or {key: b"ab"})
        return missing

    assert [get(key) for key in "abacab"] == [["a"], ["b"], [], ["c"], [], ["b"]]
    assert cache.get(["d"], lambda keys: {"d": b"too long"}) == {"d": b"too long"}
    assert get("a") == ["a"]
