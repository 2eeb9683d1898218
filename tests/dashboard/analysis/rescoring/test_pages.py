"""What the pages of rescorings show, and to whom."""

import csv
import io
import json

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run
from tests.dashboard.analysis.rescoring.factories import (
    RIGHT,
    SHORT,
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.completions.factories import make_recipe
from tests.dashboard.rewards.editor import fields


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_scored_run(shared_team, name="calm-otter-1", num_steps=4)


@pytest.fixture(scope="module")
def short(shared_team) -> RecipeVersion:
    return make_recipe(shared_team, name="short", rules=[SHORT])


@pytest.fixture(scope="module")
def done(run) -> Rescoring:
    return see_through(start(run, [RIGHT, SHORT]))


SHORT_FIELDS = (
    "length",
    {
        "name": "short",
        "weight": "0.5",
        "params-maximum": "4",
        "params-soft_edge": "12",
    },
)
RIGHT_FIELDS = ("numeric_answer", {"name": "right"})


def test_the_form_counts_what_will_be_scored(alice_client, run, short):
    address = f"/alpha/rescorings/new?run={run.pk}&recipe={short.pk}&every=2"

    page = alice_client.get(f"{address}&first_step=2").text

    assert "16 of 24" in page  # steps 2 and 4 of three
    assert "short v1" in page
    assert "8 completions" in page  # of the first step, timed just now


def test_the_form_starts_with_the_runs_recipe(alice_client, run):
    draft = alice_client.get(f"/alpha/rescorings/new?run={run.pk}").context["draft"]

    assert [rule.name for rule in draft.rules] == ["right"]


def test_a_recipe_with_unknown_rules_is_explained(alice_client, run):
    run.config["reward"]["recipe"]["rules"][0]["kind"] = "gone"
    run.save()

    page = alice_client.get(f"/alpha/rescorings/new?run={run.pk}")

    assert page.status_code == 200
    assert "no longer exists" in page.text


def test_a_start_leads_to_the_rescoring(alice_client, run, short):
    answer = alice_client.post(
        f"/alpha/rescorings/new?run={run.pk}&recipe={short.pk}",
        fields(SHORT_FIELDS, action="start", last_step="2"),
    )

    rescoring = Rescoring.objects.get()
    assert answer.headers["Location"] == f"/alpha/rescorings/{rescoring.pk}/"
    assert (rescoring.steps, rescoring.recipe_version) == ([1, 2], short)
    assert rescoring.created_by is not None
    page = alice_client.get(answer.headers["Location"]).text
    assert 'hx-trigger="every 1s"' in page


def test_an_edited_recipe_has_no_version(alice_client, run, short):
    alice_client.post(
        f"/alpha/rescorings/new?run={run.pk}&recipe={short.pk}",
        fields(("length", {"weight": "3"}), action="start"),
    )

    rescoring = Rescoring.objects.get()
    assert rescoring.recipe_version is None
    assert rescoring.spec is not None
    assert rescoring.spec["rules"][0]["weight"] == 3.0
    again = alice_client.get(
        f"/alpha/rescorings/new?run={run.pk}&again={rescoring.pk}"
    ).text
    assert f"Reward of rescoring {rescoring.pk}" in again


def test_an_unchanged_recipe_of_the_run_is_each_steps_own(alice_client, run):
    alice_client.post(
        f"/alpha/rescorings/new?run={run.pk}", fields(RIGHT_FIELDS, action="start")
    )

    assert Rescoring.objects.get().spec is None


def test_a_refusal_shows_the_error(alice_client, run):
    for given, wrong in (
        ({"first_step": "3", "last_step": "2"}, "last_step"),
        ({"first_step": "77"}, ""),
        ({"every": "0"}, "every"),
    ):
        answer = alice_client.post(
            f"/alpha/rescorings/new?run={run.pk}",
            fields(RIGHT_FIELDS, action="start", **given),
        )

        assert answer.status_code == 422
        assert answer.context["problem"]
        assert list(answer.context["steps"].errors) == [wrong] * bool(wrong)
    assert not Rescoring.objects.exists()


def test_a_judge_requires_consent_to_its_number_of_requests(alice_client, run, team):
    rule = {
        "name": "judge",
        "kind": "llm_judge",
        "params": {"base_url": "https://judge.example.com/v1", "model": "large"},
    }
    version = make_recipe(team, name="judged", rules=[rule])

    page = alice_client.get(f"/alpha/rescorings/new?run={run.pk}&recipe={version.pk}")

    assert page.context["estimate"].num_calls == 32
    assert 'name="may_ask"' in page.text


def test_a_viewer_cannot_start_a_rescoring(bob_client, run, done):
    page = bob_client.get(f"/alpha/rescorings/new?run={run.pk}").text
    result = bob_client.get(f"/alpha/rescorings/{done.pk}/").text

    assert 'value="start"' not in page
    assert "Delete" not in result
    answer = bob_client.post(
        f"/alpha/rescorings/new?run={run.pk}", fields(RIGHT_FIELDS, action="start")
    )
    assert answer.status_code == 403


def test_rescorings_of_another_team_are_not_found(
    charlie_client, alice_client, run, done
):
    other = Team.objects.get(slug="other")
    theirs = make_scored_run(other, name="theirs")

    assert charlie_client.get(f"/other/rescorings/{done.pk}/").status_code == 404
    again = f"/other/rescorings/new?run={theirs.pk}&again={done.pk}"
    assert charlie_client.get(again).status_code == 404
    page = alice_client.get(f"/alpha/rescorings/new?run={theirs.pk}").text
    assert "theirs" not in page


def test_a_result_shows_the_changes(alice_client, done):
    page = alice_client.get(f"/alpha/rescorings/{done.pk}/").text

    assert "32 of 32" in page
    assert "4 of 4" in page
    assert [rule["num_old"] for rule in done.result["rules"]] == [32, 0]
    run = done.run_id
    assert f"/alpha/runs/{run}/groups/1/0/#completion-" in page


def test_the_table_is_sorted_by_the_query(alice_client, done):
    address = f"/alpha/rescorings/{done.pk}/"

    moved = alice_client.get(address).context
    every = alice_client.get(f"{address}?show=all&sort=reward").context

    assert {each.old_rank == each.new_rank for each in moved["changes"]} == {False}
    assert moved["page"].paginator.count == done.result["num_moved"]
    sizes = [abs(each.new - each.old) for each in every["changes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert every["page"].paginator.count == 32


def test_the_runs_recipe_gives_equal_rewards(alice_client, run):
    same = see_through(start(run))

    answer = alice_client.get(f"/alpha/rescorings/{same.pk}/")

    assert same.result["num_equal"] == same.result["num"] == 32
    assert answer.context["changes"] == []
    assert answer.context["is_same"]


def test_the_page_reloads_when_the_rescoring_ends(alice_client, done, run):
    waiting = start(run)

    ended = alice_client.get(f"/alpha/rescorings/{done.pk}/progress")
    open_ = alice_client.get(f"/alpha/rescorings/{waiting.pk}/progress")

    assert ended.headers["HX-Refresh"] == "true"
    assert "HX-Refresh" not in open_.headers


def test_it_is_exported_completion_by_completion(alice_client, done):
    address = f"/alpha/rescorings/{done.pk}/completions"

    lines = _body(alice_client, f"{address}.jsonl").splitlines()
    rows = list(csv.DictReader(io.StringIO(_body(alice_client, f"{address}.csv")[1:])))

    first = json.loads(lines[0])
    assert len(lines) == len(rows) == 32
    assert (first["step"], first["prompt_index"], first["position"]) == (1, 0, 0)
    assert (first["old_reward"], first["new_reward"]) == (1.0, 1.5)
    assert first["rules"]["short"] == {"old": None, "new": 1.0}
    assert (rows[0]["new_reward"], rows[0]["new short"]) == ("1.5", "1.0")
    assert rows[0]["old short"] == ""
    assert alice_client.get(f"{address}.xml").status_code == 404


def test_a_failing_export_sends_no_file(alice_client, done):
    done.scored.update(scores=b"odd")
    alice_client.raise_request_exception = False

    answer = alice_client.get(f"/alpha/rescorings/{done.pk}/completions.jsonl")

    assert answer.status_code == 500
    assert "Content-Disposition" not in answer


def _body(client: Client, address: str) -> str:
    answer = client.get(address)
    return b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]


def test_the_list_can_be_limited_to_a_run(alice_client, run, done, team):
    other = make_scored_run(team, name="brave-fox-2")

    every = alice_client.get("/alpha/rescorings/").text
    one = alice_client.get(f"/alpha/rescorings/?run={other.pk}").text

    assert f"/alpha/rescorings/{done.pk}/" in every
    assert f"/alpha/rescorings/{done.pk}/" not in one


def test_runs_and_recipes_lead_there(alice_client, run, short):
    page = alice_client.get(f"/alpha/runs/{run.pk}/").text
    recipe = alice_client.get(f"/alpha/rewards/{short.recipe_id}/").text

    assert f"/alpha/rescorings/?run={run.pk}" in page
    assert f"/alpha/rescorings/new?recipe={short.pk}" in recipe


def test_a_result_takes_few_queries(alice_client, done, django_assert_max_num_queries):
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        alice_client.get(f"/alpha/rescorings/{done.pk}/")
