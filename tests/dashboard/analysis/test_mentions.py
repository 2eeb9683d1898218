"""Who is named in a comment finds it on a page of their own."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import Membership, Team, User
from dashboard.analysis.comments import find_mentioned
from dashboard.completions.annotations import suggest_tags
from dashboard.completions.models import Comment, Group, Mention, Tag
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient


@pytest.fixture
def group(team) -> Group:
    return make_group(make_run(team), step=5, prompt_index=4)


@pytest.fixture
def dora(team) -> User:
    dora = User.objects.create_user("dora.k")
    Membership.objects.create(user=dora, team=team)
    return dora


def comment(client: Client, group: Group, text: str, position: int | str = 1) -> None:
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    sent = {"position": position, "comment": text}
    assert client.post(reverse("group_marks", args=at), sent).status_code == 302


def page_of(user: User) -> tuple[Client, str]:
    client = PageClient()
    client.force_login(user)
    return client, client.get("/alpha/mentions/").content.decode()


def test_members_are_found_however_they_are_written(team, dora):
    User.objects.create_user("zed")
    found = ["@dora.k look", "see (@Dora.K), please", "I asked @dora.k."]
    found += ["@dora.k @dora.k @no one"]
    others = ["write to me@dora.k or @@dora.k", "@dora.kim", "@zed is elsewhere"]

    for text in found:
        assert find_mentioned(team, text) == [dora], text
    for text in others:
        assert list(find_mentioned(team, text)) == [], text


def test_a_mention_is_new_until_it_is_shown(alice_client, group, dora):
    comment(alice_client, group, "@dora.k it guesses")
    client, first = page_of(dora)
    again = client.get("/alpha/mentions/").content.decode()

    assert "it guesses" in first
    written = Comment.objects.get()
    assert f"/runs/{group.run_id}/groups/5/4/#comment-{written.pk}" in first
    assert 'data-mark="new"' in first
    assert "it guesses" in again
    assert 'data-mark="new"' not in again


def test_every_page_shows_the_number_of_new_mentions(alice_client, group, dora):
    comment(alice_client, group, "@dora.k one")
    comment(alice_client, group, "@dora.k two", position="")
    client = PageClient()
    client.force_login(dora)

    before = client.get("/alpha/runs/").content.decode()
    client.get("/alpha/mentions/")
    after = client.get("/alpha/runs/").content.decode()

    assert 'data-news="2"' in before
    assert 'data-news="0"' in after


def test_mentions_in_the_opened_notifications_are_seen(alice_client, group, dora):
    comment(alice_client, group, "@dora.k look")
    client = PageClient()
    client.force_login(dora)

    opened = client.get("/alpha/notifications").text
    again = client.get("/alpha/notifications").text

    assert "#comment-" in opened
    assert "#comment-" not in again
    assert "#comment-" in client.get("/alpha/mentions/").text


def test_users_are_not_notified_of_their_own_comments(alice_client, group):
    comment(alice_client, group, "@alice remember")

    assert not Mention.objects.exists()


def test_a_deleted_comment_has_no_mentions(alice_client, group, dora):
    comment(alice_client, group, "@dora.k oh")
    found = Mention.objects.get()
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    alice_client.post(
        reverse("group_marks", args=at),
        {"position": 1, "uncomment": str(found.comment_id)},
    )

    assert "/groups/5/4/" not in page_of(dora)[1]


def test_mentions_in_a_deleted_run_are_not_shown(alice_client, group, dora, team):
    comment(alice_client, group, "@dora.k oh")
    place = {"group": group, "position": 1, "user": dora}
    Tag.objects.create(**place, name="lucky")
    tagged = suggest_tags(team)
    Run.objects.update(deleted_at=timezone.now())

    client, page = page_of(dora)

    assert Mention.objects.get().seen_at is None
    assert "/groups/5/4/" not in page
    assert "new mention" not in client.get("/alpha/runs/").content.decode()
    assert (tagged, suggest_tags(team)) == (["lucky"], [])


def test_comments_of_other_teams_are_not_shown(alice_client, group, dora):
    comment(alice_client, group, "@dora.k in alpha")
    other = Team.objects.create(slug="gamma", name="Gamma")
    Membership.objects.create(user=dora, team=other)
    client = PageClient()
    client.force_login(dora)

    assert "in alpha" not in client.get("/gamma/mentions/").content.decode()
    assert "new mention" in client.get("/gamma/mentions/").content.decode()
