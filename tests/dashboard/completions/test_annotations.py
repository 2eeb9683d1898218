"""Annotations of groups and completions: stored, searched, exported."""

import json
import math
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Membership, User
from dashboard.analysis.comments import MAX_COMMENTS
from dashboard.completions.annotations import MAX_TAGS, Target, add_tag
from dashboard.completions.models import MAX_COMMENT_CHARS, Comment, Group, Tag, Thumb
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.supervision.storage import NumberedEvent, copy_groups
from tests.dashboard.completions.episodes import (
    MARK,
    add_episodes,
    called,
    episode,
    said,
)
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.completions.stored import change_completions
from tests.dashboard.supervision.logs import LogBuilder


@pytest.fixture
def group(team) -> Group:
    return make_group(
        make_run(team),
        step=5,
        prompt_index=4,
        texts=["a", "b", "c", "a"],
        rewards=(1.2, 0.2, 0.0, 1.2),
    )


def mark(client: Client, group: Group, position: int | str = "", **sent: str) -> Any:
    at = ["alpha", group.run_id, group.step, group.prompt_index]
    return client.post(reverse("group_marks", args=at), {"position": position, **sent})


def export(client: Client, run: Run, name: str) -> list[dict[str, Any]]:
    answer = client.get(reverse("run_annotations", args=["alpha", run.pk, name]))
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.getvalue().decode().splitlines()]  # type: ignore[attr-defined]  # a stream has it


def found(client: Client, run: Run, query: str) -> list[int]:
    answer = client.get(f"/alpha/runs/{run.pk}/completions/?sort=step&{query}")
    places = [found["place"] for found in answer.context["completions"]]
    return [int(place.rpartition("/")[2]) for place in places]


def test_a_user_has_one_judgement_and_can_remove_it(alice_client, group):
    mark(alice_client, group, 1, judge="good")
    mark(alice_client, group, 1, judge="bad")
    assert list(Thumb.objects.values_list("position", "is_up")) == [(1, False)]

    mark(alice_client, group, 1, judge="nothing")

    assert not Thumb.objects.exists()


def test_a_group_has_one_judgement_per_user(alice_client, group):
    for judgement in ("good", "bad", "good"):
        mark(alice_client, group, judge=judgement)

    assert list(Thumb.objects.values_list("position", "is_up")) == [(None, True)]


def test_a_tag_is_normalised_and_unique(alice_client, group):
    mark(alice_client, group, 1, tag="  Reward  Hack ")
    mark(alice_client, group, 1, tag="reward-hack")

    assert [tag.name for tag in Tag.objects.all()] == ["reward-hack"]

    mark(alice_client, group, 1, untag="reward-hack")

    assert not Tag.objects.exists()


def test_an_invalid_tag_is_refused(alice, group):
    for text in ("", "<b>", "-x", "a" * 41, "a/b"):
        with pytest.raises(UserError) as error:
            add_tag(alice, Target(group, 1), text)

        assert error.value.code == "samples.bad_tag"
    assert not Tag.objects.exists()


def test_tags_and_comments_are_limited(alice_client, group):
    for number in range(MAX_TAGS + 1):
        mark(alice_client, group, 1, tag=f"tag{number}")
    Comment.objects.bulk_create(
        Comment(group=group, position=1, text="x") for _ in range(MAX_COMMENTS)
    )
    mark(alice_client, group, 1, comment="one more")
    mark(alice_client, group, 2, comment="a" * 4_001)
    mark(alice_client, group, 2, comment="  ")

    assert Tag.objects.count() == MAX_TAGS
    assert Comment.objects.count() == MAX_COMMENTS


def test_a_nul_does_not_cause_a_server_error(alice_client, group):
    for action in ("judge", "tag", "untag", "comment", "uncomment"):
        assert mark(alice_client, group, 1, **{action: "a\0b"}).status_code == 302

    assert [comment.text for comment in Comment.objects.all()] == ["a␀b"]


def test_the_end_of_a_line_is_one_character_of_a_comment(alice_client, group):
    lines = ["a"] * (MAX_COMMENT_CHARS // 2)

    mark(alice_client, group, 1, comment="\r\n".join(lines))

    assert [comment.text for comment in Comment.objects.all()] == ["\n".join(lines)]


def test_only_its_writer_deletes_a_comment(alice_client, client, group, team):
    mark(alice_client, group, 2, comment="It guesses.\nLook.")
    bob = User.objects.create_user("bob2")
    Membership.objects.create(user=bob, team=team)
    client.force_login(bob)
    comment = Comment.objects.get()

    mark(client, group, 2, uncomment=str(comment.pk))
    assert Comment.objects.exists()
    mark(alice_client, group, 2, uncomment=str(comment.pk))

    assert not Comment.objects.exists()


def test_an_unknown_completion_is_404(alice_client, group):
    for position in ("4", "x", "-1", "9" * 30):
        assert mark(alice_client, group, position, judge="good").status_code == 404


def test_a_page_without_htmx_goes_back_to_the_completion(alice_client, group):
    answer = mark(alice_client, group, 2, judge="good")

    assert answer.url.endswith("/groups/5/4/#completion-2")


def test_completions_are_found_by_annotations(alice_client, client, group, team):
    run = group.run
    make_group(run, step=6, prompt_index=4)  # without annotations
    mark(alice_client, group, 0, judge="good")
    mark(alice_client, group, 1, judge="bad")
    mark(alice_client, group, 2, tag="odd")
    mark(alice_client, group, 3, comment="hm")
    bob = User.objects.create_user("bob2")
    Membership.objects.create(user=bob, team=team)
    client.force_login(bob)
    mark(client, group, 3, judge="bad")

    assert found(alice_client, run, "mark=good") == [0]
    assert found(alice_client, run, "mark=bad") == [1, 3]
    assert found(alice_client, run, "mark=bad&by=me") == [1]
    assert found(alice_client, run, "mark=commented") == [3]
    assert found(alice_client, run, "mark=any") == [0, 1, 2, 3]
    assert found(client, run, "by=me") == [3]
    assert found(alice_client, run, "tag=odd") == [2]
    assert found(alice_client, run, "tag=odd&mark=good") == []


def test_a_groups_tag_is_its_completions_too(alice_client, group):
    mark(alice_client, group, tag="hard")

    assert found(alice_client, group.run, "tag=hard") == [0, 1, 2, 3]
    page = alice_client.get(f"/alpha/runs/{group.run_id}/completions/").content.decode()
    assert page.count('hard <span class="text-quiet">(group)</span>') == 4


def test_annotations_are_exported(alice_client, group):
    mark(alice_client, group, tag="hard")
    mark(alice_client, group, 1, judge="bad")
    mark(alice_client, group, 1, comment="Ünlike the others")

    whole, one = export(alice_client, group.run, "annotations")

    assert whole["position"] is None
    assert whole["tags"] == [{"name": "hard", "by": "alice"}]
    assert (one["step"], one["prompt_index"], one["position"]) == (5, 4, 1)
    assert (one["completion"], one["reward"], one["good"], one["bad"]) == (
        "b", 0.2, 0, 1,
    )  # fmt: skip
    assert one["rules"] == {"answer": 0.0, "format": 1.0}
    assert one["comments"][0]["text"] == "Ünlike the others"


def test_preference_pairs_combine_good_and_bad_completions(alice_client, group):
    mark(alice_client, group, 0, judge="good")
    for position in (1, 2, 3):  # the last has the text of the good one
        mark(alice_client, group, position, judge="bad")
    mark(alice_client, group, judge="bad")  # of the group: no pair

    pairs = export(alice_client, group.run, "preferences")

    values = [(pair["prompt"], pair["chosen"], pair["rejected"]) for pair in pairs]
    assert values == [(group.prompt, "a", "b"), (group.prompt, "a", "c")]
    assert pairs[0]["chosen_reward"] == 1.2


GAME = [{"role": "user", "content": "5 24 ?"}]
HIGHER, LOWER = (said(text, author="environment") for text in "+-")
EPISODES = [
    episode(said("12"), HIGHER, said("20"), said(".", author="environment")),
    episode(said("12"), HIGHER, said("13")),
    episode(said("7"), said("5", **called("add", "{}", result="5")), said("9")),
    episode(said("12"), HIGHER, said("20"), LOWER),  # a policy that wrote the same
]


def turn(content, role="assistant", **fields):
    return {"role": role, "content": content, **fields}


def store_episodes(team, **fields):
    run = make_run(team)
    (event,) = add_episodes(LogBuilder(), 1, *EPISODES).events
    copy_groups(run.pk, [NumberedEvent(1, event.model_copy(update=fields))])
    return Group.objects.get(run=run)


def test_pairs_of_episodes_are_conversations_from_where_they_differ(alice_client, team):
    group = store_episodes(team, messages=GAME, begun="I say ")
    mark(alice_client, group, 0, judge="good")
    for position in (1, 2, 3):
        mark(alice_client, group, position, judge="bad")

    last, whole = export(alice_client, group.run, "preferences")

    first = [turn("I say 12"), turn("+", role="user")]
    assert last["prompt"] == GAME + first
    assert (last["chosen"], last["rejected"]) == ([turn("20")], [turn("13")])
    assert whole["prompt"] == GAME
    assert whole["chosen"] == [*first, turn("20")]
    assert whole["rejected"] == [
        turn("I say 7"),
        turn("5", role="tool", name="add"),
        turn("9"),
    ]


def test_pairs_of_episodes_without_a_chat_template_are_texts(alice_client, team):
    group = store_episodes(team)
    mark(alice_client, group, 0, judge="good")
    mark(alice_client, group, 1, judge="bad")
    mark(alice_client, group, 2, judge="bad")

    last, whole = export(alice_client, group.run, "preferences")

    begin = f"12{MARK}+{MARK}"
    assert last["prompt"] == f"5 24 ?{begin}"
    assert (last["chosen"], last["rejected"]) == ("20", "13")
    assert whole["prompt"] == "5 24 ?"
    assert whole["chosen"] == f"{begin}20"
    assert whole["rejected"] == f"7{MARK}5{MARK}9"


def test_a_number_that_json_has_not_is_null_in_a_file(alice_client, group):
    mark(alice_client, group, 0, judge="good")
    mark(alice_client, group, 1, judge="bad")
    for value in (math.nan, math.inf, -math.inf):
        scores = [value] * len(group.rule_names)
        change_completions(group, reward=value, advantage=value, rule_scores=scores)

        exported, _ = export(alice_client, group.run, "annotations")
        (pair,) = export(alice_client, group.run, "preferences")

        assert (exported["reward"], exported["advantage"]) == (None, None)
        assert exported["rules"] == dict.fromkeys(group.rule_names)
        assert (pair["chosen_reward"], pair["rejected_reward"]) == (None, None)


def test_equal_votes_make_no_preference_pair(alice_client, client, group, team):
    bob = User.objects.create_user("bob2")
    Membership.objects.create(user=bob, team=team)
    client.force_login(bob)
    mark(alice_client, group, 0, judge="good")
    mark(client, group, 0, judge="bad")
    mark(client, group, 1, judge="bad")

    assert export(alice_client, group.run, "preferences") == []


def test_superseded_groups_are_not_exported(alice_client, group):
    mark(alice_client, group, 0, judge="good")
    mark(alice_client, group, 1, judge="bad")
    Group.objects.update(superseded_by=2)

    assert export(alice_client, group.run, "annotations") == []
    assert export(alice_client, group.run, "preferences") == []


def test_an_unknown_export_is_404(alice_client, group):
    at = reverse("run_annotations", args=["alpha", group.run_id, "secrets"])

    assert alice_client.get(at).status_code == 404


def test_annotations_are_escaped(alice_client, group):
    mark(alice_client, group, 1, comment="<script>alert(1)</script>")

    page = alice_client.get(f"/alpha/runs/{group.run_id}/groups/5/4/").content.decode()

    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
