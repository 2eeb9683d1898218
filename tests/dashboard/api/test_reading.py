"""What programs read: the same as pages show."""

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from dashboard.accounts.throttling import one_at_a_time
from dashboard.runs.models import Run
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.factories import (
    make_group,
    make_note,
    make_run,
    make_steps,
)
from tests.dashboard.runs.launching import make_dataset


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "read"))


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_run(shared_team, "calm-otter-1", tags=["baseline"])


def test_runs_are_found_in_the_lists_own_language(program, team):
    make_run(team, "a", tags=["x"])
    make_run(team, "b", state="failed")

    found = program.read("/runs?q=state%20%3D%20failed")

    assert [each["name"] for each in found["items"]] == ["b"]
    assert found["total"] == 1


def test_a_query_that_means_nothing_names_its_place(program):
    found = program.get("/runs?q=state%20%3D")

    assert found.status_code == 422
    (error,) = found.json()["errors"]
    assert error["field"] == "query.q"
    assert "characters" in error["message"]


def test_runs_in_another_order_are_paged_too(program, team):
    for name in "cab":
        make_run(team, name)

    first = program.read("/runs?sort=name&limit=2")
    second = program.read(f"/runs?sort=name&limit=2&cursor={first['next_cursor']}")

    names = [each["name"] for page in (first, second) for each in page["items"]]
    assert names == ["a", "b", "c"]
    assert second["next_cursor"] is None
    assert program.get("/runs?sort=nothing-such").status_code == 422


def test_a_run_list_has_a_constant_number_of_queries(
    program, team, django_assert_num_queries
):
    make_run(team)
    program.read("/runs")
    for number in range(5):
        make_run(team, f"r{number}")

    with django_assert_num_queries(4):  # token, place, count, runs
        program.read("/runs")


def test_a_run_has_its_settings(program, run):
    found = program.read(f"/runs/{run.pk}")

    assert found["name"] == "calm-otter-1"
    assert found["config"] == run.config
    assert found["tags"] == ["baseline"]
    assert found["dataset_version"]["id"] == run.dataset_version_id


def test_every_point_of_a_metric_is_there(program, run):
    values: list[float | None] = [float(i) for i in range(2_500)]
    values[7] = None
    make_steps(run, {"reward/mean": values, "kl/mean": [0.5] * 2_500})

    points: list[Any] = []
    cursor = ""
    while True:
        page = program.read(
            f"/runs/{run.pk}/metrics?names=reward/mean&limit=1000&cursor={cursor}",
        )
        points += page["points"]
        if not (cursor := page["next_cursor"]):
            break

    assert [point["step"] for point in points] == list(range(1, 2_501))
    found = [point["values"].get("reward/mean") for point in points]
    assert found == values
    assert {name for point in points for name in point["values"]} == {"reward/mean"}
    (metric,) = page["metrics"]
    assert (metric["title"], metric["better"]) == ("Reward (mean)", "higher")


def test_metrics_are_taken_as_parquet(program, run):
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3]})

    found = program.get(f"/runs/{run.pk}/files/metrics.parquet?last_step=2")

    table = pq.read_table(io.BytesIO(b"".join(found.streaming_content)))
    assert table.column("reward/mean").to_pylist() == [0.1, 0.2]


def test_pass_rates_are_exported(program, run):
    make_group(run, prompt_index=4)

    found = program.get(f"/runs/{run.pk}/files/pass-rates.jsonl")

    (line,) = b"".join(found.streaming_content).splitlines()
    assert json.loads(line)["row"] == 4


def test_steps_the_wrong_way_round_are_refused(program, run):
    found = program.get(f"/runs/{run.pk}/metrics?first_step=9&last_step=2")

    assert found.status_code == 422
    assert found.json()["errors"][0]["field"] == "query.last_step"


def test_groups_are_paged_by_step_and_prompt(program, run):
    places = [(step, prompt) for step in (1, 2, 3) for prompt in (0, 1)]
    for step, prompt in reversed(places):
        make_group(run, step=step, prompt_index=prompt)

    seen: list[tuple[int, int]] = []
    cursor = ""
    while True:
        page = program.read(f"/runs/{run.pk}/groups?limit=4&cursor={cursor}")
        seen += [(each["step"], each["prompt_index"]) for each in page["items"]]
        if not (cursor := page["next_cursor"]):
            break

    assert seen == places


def test_a_steps_groups_are_sorted(program, run):
    for prompt, rewards in enumerate(((0.2, 0.2), (1.2, 1.2), (0.0, 0.0))):
        make_group(run, step=1, prompt_index=prompt, rewards=rewards)

    first = program.read(f"/runs/{run.pk}/groups?step=1&sort=-mean&limit=2")
    rest = program.read(
        f"/runs/{run.pk}/groups?step=1&sort=-mean&cursor={first['next_cursor']}",
    )

    seen = [each["prompt_index"] for page in (first, rest) for each in page["items"]]
    assert seen == [1, 0, 2]
    refused = program.get(f"/runs/{run.pk}/groups?sort=mean")
    assert refused.json()["errors"][0]["field"] == "query.step"


def test_a_group_has_its_completions(program, run):
    group = make_group(run, step=2, prompt_index=5)
    make_group(run, step=4, prompt_index=5)
    make_note(group, "looked twice", position=1)

    found = program.read(f"/runs/{run.pk}/groups/2/5")

    assert found["prompt"] == "What is 5 + 1?"
    assert [each["reward"] for each in found["completions"]] == [1.2, 0.2, 0.0, 0.0]
    assert found["completions"][0]["rule_scores"]["answer"] == 1.0
    parts = {each["rule"]: each["part"] for each in found["completions"][0]["parts"]}
    assert parts == {"answer": 1.0, "format": pytest.approx(0.2)}
    assert found["completions"][1]["notes"][0]["text"] == "looked twice"


def test_completions_are_searched(program, run):
    make_group(run, step=1, prompt_index=0)

    by_reward = program.read(f"/runs/{run.pk}/completions?min_reward=1")
    by_text = program.read(f"/runs/{run.pk}/completions?text=completion%203")

    assert [each["position"] for each in by_reward["items"]] == [0]
    assert [each["position"] for each in by_text["items"]] == [3]
    assert by_reward["total"] == 4


def test_all_completions_come_page_by_page(program, run):
    for prompt in range(16):
        make_group(run, step=1, prompt_index=prompt)

    for query in ("sort=step", "text=completion"):
        seen: list[tuple[int, int]] = []
        cursor = ""
        while True:
            page = program.read(f"/runs/{run.pk}/completions?{query}&cursor={cursor}")
            seen += [(each["prompt_index"], each["position"]) for each in page["items"]]
            if not (cursor := page["next_cursor"]):
                break
        assert sorted(seen) == [(g, p) for g in range(16) for p in range(4)], query


def test_a_filter_that_cannot_be_is_refused_by_name(program, run):
    found = program.get(f"/runs/{run.pk}/completions?outcome=odd")

    assert found.status_code == 422
    assert found.json()["errors"][0]["field"] == "query.outcome"


def test_runs_are_compared(program, team):
    first, second = (make_run(team, name) for name in "ab")
    second.config["optim"]["learning_rate"] = 0.5
    second.save()

    found = program.read(f"/compare?runs={first.pk},{second.pk}")

    assert [each["id"] for each in found["runs"]] == [first.pk, second.pk]
    rate = next(s for s in found["settings"] if s["key"] == "optim.learning_rate")
    assert rate["values"][1] == "0.5"


def test_recipes_have_versions(program, run):
    (recipe,) = program.read("/recipes")["items"]
    (version,) = program.read(f"/recipes/{recipe['id']}/versions")["items"]

    assert version["id"] == run.recipe_version_id
    assert [rule["name"] for rule in version["spec"]["rules"]] == ["answer", "format"]


def test_presets_are_those_of_the_launch_form(program):
    keys = [each["key"] for each in program.read("/presets")["presets"]]

    assert "verl" in keys or len(keys) > 3


def test_thinned_metrics_keep_the_extremes_of_each_interval(program, team):
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.5] * 100 + [9.0, -9.0] + [0.5] * 98})

    read = program.read(f"/runs/{run.pk}/metrics?names=reward/mean&points=10")

    series = read["series"]["reward/mean"]
    assert read["points"] == []
    assert len(series["steps"]) <= 10
    assert (min(series["low"]), max(series["high"])) == (-9.0, 9.0)
    assert series["steps"][-1] == 200
    assert program.get(f"/runs/{run.pk}/metrics?points=1").status_code == 422


SPEC = {"rules": [{"name": "answer", "kind": "numeric_answer", "params": {}}]}
JUDGE = {"rules": [{"name": "judge", "kind": "llm_judge", "params": {}}]}


def test_recipe_is_tried_on_texts_of_a_row(program, team):
    version = make_dataset(team, "tried")
    body = {"spec": SPEC, "dataset_version_id": version.pk, "row": 2}

    response = program.post("/recipes/try", {**body, "texts": ["3", "4"]})

    assert [item["reward"] for item in response.json()["items"]] == [1.0, 0.0]


def test_recipe_is_tried_on_a_stored_group(program, team):
    version = make_dataset(team, "tried")
    run = make_run(team, dataset_version=version)
    make_group(run, step=3, prompt_index=2, texts=["3", "4"], rewards=(0.0, 0.0))
    body = {"spec": SPEC, "run_id": run.pk, "step": 3, "prompt": 2}

    response = program.post("/recipes/try", body)

    assert [item["reward"] for item in response.json()["items"]] == [1.0, 0.0]


@pytest.mark.parametrize("path", ["/recipes/try", "/recipes/check"])
def test_a_team_scores_one_request_at_a_time(program, team, charlie, path):
    texts = {"texts": ["3"]} if path == "/recipes/try" else {}
    own, theirs = (
        {"spec": SPEC, "dataset_version_id": make_dataset(owner, "tried").pk, **texts}
        for owner in (team, charlie.memberships.get().team)
    )

    with one_at_a_time(f"cohort:scoring:{team.pk}", most_seconds=60) as is_free:
        second = program.post(path, own)
        other = Program(make_token(charlie)).post(path, theirs)
    after = program.post(path, own)

    assert is_free
    assert (second.status_code, second.json()["code"]) == (429, "rewards.scoring")
    assert int(second.headers["Retry-After"]) >= 1
    assert (other.status_code, after.status_code) == (200, 200)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "rewards.recipe_or_spec"),
        ({"recipe_version_id": 1, "spec": SPEC}, "rewards.recipe_or_spec"),
        ({"spec": SPEC}, "rewards.nothing_to_try"),
        ({"spec": SPEC, "run_id": 1}, "rewards.group_required"),
        ({"spec": SPEC, "texts": ["x"] * 21}, "invalid"),
    ],
)
def test_recipe_without_anything_to_try_gets_422(program, body, code):
    response = program.post("/recipes/try", body)

    assert (response.status_code, response.json()["code"]) == (422, code)


def test_a_recipe_without_a_judge_is_scored_in_a_child_though_it_may_ask(
    team, alice, monkeypatch
):
    writer = Program(make_token(alice, "write"))
    monkeypatch.setattr("dashboard.api.recipes.ask_models", None)
    body = {"spec": SPEC, "dataset_version_id": make_dataset(team, "tried").pk}

    answer = writer.post("/recipes/try", {**body, "texts": ["3"], "may_ask": True})

    assert answer.status_code == 200


def test_judge_is_asked_only_if_allowed_and_with_the_scope_write(program, team):
    body = {"spec": JUDGE, "dataset_version_id": make_dataset(team, "tried").pk}

    refused = program.post("/recipes/try", {**body, "texts": ["3"]})
    reader = program.post("/recipes/try", {**body, "texts": ["3"], "may_ask": True})

    assert refused.status_code == 422
    assert refused.json()["code"] in ("rewards.judge_not_allowed", "rewards.bad_recipe")
    assert reader.json()["code"] == "tokens.scope_missing"
