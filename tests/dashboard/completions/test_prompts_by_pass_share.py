"""A run's prompts by how often they were right, and datasets made of them."""

import re
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from dashboard.completions.pass_rates import KINDS, TALLY, count_prompts, select
from dashboard.completions.prompt_visits import Span, read_visits
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.datasets.trash import trash_dataset
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_group,
    make_run,
    store_dataset,
)
from tests.dashboard.completions.prompts import (
    MAPPING,
    ROWS,
    address,
    listed,
    make,
    visit,
)
from tests.page_client import words


@pytest.fixture
def version(team) -> DatasetVersion:
    return store_dataset(team, ROWS, mapping=MAPPING)


@pytest.fixture
def run(team, version) -> Run:
    return make_run(team, dataset_version=version)


@pytest.fixture
def seen(run) -> Run:
    """Prompt 0 never right, 1 at the first step only, 2 at times, 3 always."""
    for step in (1, 2, 3):
        visit(run, step, 0, 0)
        visit(run, step, 1, 4 if step == 1 else 0)
        visit(run, step, 2, 1)
        visit(run, step, 3, 4)
    make_group(run, step=3, prompt_index=4, rewards=(None, None))
    return run


def test_prompts_are_chosen_by_their_share(alice_client, seen):
    for query, wanted in {
        "": [0, 2, 1, 3, 4],
        "which=unsolved": [0],
        "which=unsolved&visits=2": [0, 1],
        "which=unsolved&first_step=1&last_step=1": [0],
        "which=unsolved&first_step=2": [0, 1],
        "which=failed": [0, 2],
        "which=failed&at_most=24.9": [0],
        "which=failed&at_most=34": [0, 2, 1],
        "which=mixed": [2, 1],
        "which=mixed&low=30&high=40": [1],
        "which=mixed&low=0&high=100": [0, 2, 1, 3],
        "first_step=9": [],
    }.items():
        assert listed(alice_client, seen, query) == wanted, query


def test_the_page_counts_prompts_and_shows_some(alice_client, seen):
    page = words(alice_client.get(address(seen, "which=failed&at_most=34")))

    assert "3 of 5 prompts" in page
    assert "Prompt 1: What is 1? 1 4 / 12 −100 points" in page


def test_superseded_visits_do_not_count(alice_client, seen):
    seen.groups.filter(prompt_index=1, step=1).update(superseded_by=2)

    assert listed(alice_client, seen, "which=unsolved") == [0, 1]


def test_right_follows_the_weights_of_each_step(team, version):
    fading = {"points": [{"step": 3, "weight": 0.0}]}
    rules = [{**RULES[0], "kind": "tag_count"}, {**RULES[1], "schedule": fading}]
    run = make_run(
        team, dataset_version=version, config=make_config(rules), rules=rules
    )
    # The format's weight goes from 0.2 to nothing, so the highest reward does, too.
    make_group(run, step=1, prompt_index=0, rewards=(1.0, 0.5))
    make_group(run, step=3, prompt_index=1, rewards=(1.0, 0.5))

    found = read_visits(run, Span(first=1, last=3))

    assert found["num_right"].tolist() == [0, 1]


def test_weights_that_do_not_add_up_exactly_still_reach_the_highest(team, version):
    weights = [0.1, 0.2, 0.7]  # 1.0 in this order, 0.9999999999999999 in another
    plain = {**RULES[0], "kind": "tag_count"}
    rules = [{**plain, "name": f"r{10 * w:.0f}", "weight": w} for w in weights]
    run = make_run(
        team, dataset_version=version, config=make_config(rules), rules=rules
    )
    make_group(run, step=1, prompt_index=0, rewards=(0.9999999999999999, 0.99))

    assert read_visits(run, Span(first=1, last=1))["num_right"].tolist() == [1]


def test_a_removed_rule_is_reported(alice_client, seen):
    seen.config["reward"]["recipe"]["rules"][0]["kind"] = "forgotten"
    seen.save()

    page = alice_client.get(address(seen))

    assert "no longer exists" in words(page)
    assert listed(alice_client, seen, "which=unscored") == [0, 1, 2, 3, 4]
    assert make(alice_client, seen, "which=unsolved").status_code == 422


def test_the_dataset_has_the_rows_as_the_run_had_them(alice_client, seen):
    answer = make(alice_client, seen, "which=failed&at_most=34")

    assert answer.status_code == 302
    made = DatasetVersion.objects.get(dataset__name="Hard")
    rows = [row.as_row() for row in made.rows.order_by("position")]
    assert rows == [ROWS[0], ROWS[1], ROWS[2]]
    assert made.mapping == MAPPING
    assert made.source["parent_sha256"] == seen.dataset_version.content_sha256
    assert (made.source["first_step"], made.source["last_step"]) == (1, 3)


def test_the_version_leads_back_to_the_run_and_its_steps(alice_client, seen):
    make(alice_client, seen, "which=mixed&low=10")
    made = DatasetVersion.objects.get(dataset__name="Hard")

    page = alice_client.get(f"/alpha/datasets/{made.dataset_id}/versions")

    assert "2 of 30 rows" in words(page)
    assert made.source_text.startswith("2 of 30 rows")
    for reported in ("10 to 99%", "calm-otter-1", "steps 1 to 3"):
        assert reported in made.source_text
    link = re.search(rf'href="(/alpha/runs/{seen.pk}/prompts/[^"]*)"', page.text)
    assert link
    visit(seen, 4, 2, 4)  # the run goes on, the link shows what was chosen
    shown = alice_client.get(link[1].replace("&amp;", "&"))
    assert [line.position for line in shown.context["lines"]] == [2, 1]


def test_the_dataset_has_the_shown_prompts_despite_new_steps(alice_client, seen):
    page = alice_client.get(address(seen, "which=unsolved")).content.decode()
    action = re.search(r'action="(\?[^"]*)" id="make"', page)
    assert action
    visit(seen, 4, 0, 4)

    make(alice_client, seen, action[1][1:].replace("&amp;", "&"))

    made = DatasetVersion.objects.get(dataset__name="Hard")
    assert [row.as_row() for row in made.rows.all()] == [ROWS[0]]


def test_two_clicks_make_one_dataset(alice_client, seen):
    key = str(uuid4())

    first = make(alice_client, seen, key=key)
    second = make(alice_client, seen, key=key)

    assert first.url == second.url
    assert ImportJob.objects.count() == 1
    assert Dataset.objects.filter(name="Hard").count() == 1


def test_no_dataset_is_created_without_matching_prompts(alice_client, seen):
    query = "which=mixed&low=98"

    assert make(alice_client, seen, query).status_code == 422
    page = words(alice_client.get(address(seen, query)))
    assert "None of 5" in page
    assert "Create dataset" not in page
    assert Dataset.objects.count() == 1


def test_an_invalid_filter_is_refused_at_its_field(alice_client, seen):
    for query, field, code in (
        ("which=mixed&low=90&high=10", "high", "empty_range"),
        ("first_step=3&last_step=1", "last_step", "empty_range"),
        ("at_most=101", "at_most", "max_value"),
        ("at_most=nan", "at_most", "invalid"),
        ("visits=0", "visits", "min_value"),
        ("last_step=99999999999", "last_step", "max_value"),
        ("which=x", "which", "invalid_choice"),
    ):
        form = alice_client.get(address(seen, query)).context["form"]
        assert form.has_error(field, code=code), query
        assert make(alice_client, seen, query).status_code == 422


def test_prompts_without_rows_do_not_count(alice_client, run):
    """A run of an outside trainer may number them as it likes."""
    visit(run, 1, 29, 0)
    visit(run, 1, 30, 0)

    assert listed(alice_client, run) == [29]


def test_it_works_for_a_run_whose_dataset_is_in_the_trash(alice_client, seen):
    trash_dataset(seen.dataset_version.dataset, None)

    assert make(alice_client, seen).status_code == 302
    assert Dataset.objects.filter(name="Hard").exists()


def test_shares_are_counted_without_floats_own_errors():
    tallies = tally_of([(0, 10, 3), (1, 10, 4), (2, 3, 1)])

    assert select(tallies, low=0, high=30)["prompt"].tolist() == [0]
    assert select(tallies, low=30, high=40)["prompt"].tolist() == [0, 1, 2]


def test_prompts_are_counted_by_what_they_learned():
    tallies = tally_of([(0, 10, 3), (1, 10, 10), (2, 3, 0), (3, 3, 1)])
    tallies["kind"] = [KINDS.index(kind) for kind in ("solved", "always", "never")] + [
        KINDS.index("solved")
    ]

    counts = count_prompts(tallies)

    assert counts.seen == 4
    assert counts.kinds == dict.fromkeys(KINDS, 0) | {
        "solved": 2,
        "always": 1,
        "never": 1,
    }


def tally_of(lines: list[tuple[int, int, int]]) -> Any:
    tallies = np.zeros(len(lines), TALLY)
    tallies["prompt"], tallies["num_scored"], tallies["num_right"] = zip(
        *lines, strict=True
    )
    return tallies


def test_many_prompts_are_shown_page_by_page_in_few_queries(
    alice_client, run, django_assert_max_num_queries
):
    for prompt in range(25):
        visit(run, 1, prompt, 0)

    with django_assert_max_num_queries(14):
        page = alice_client.get(address(run))

    assert "1–20 of 25 prompts" in words(page)
    assert listed(alice_client, run, "page=2") == [20, 21, 22, 23, 24]


def test_a_run_without_groups_says_so(alice_client, run):
    assert "No prompts" in words(alice_client.get(address(run)))


def test_the_runs_to_choose_from_are_those_with_prompts(alice_client, team, seen):
    make_run(team, "empty-run")

    page = words(alice_client.get("/alpha/runs/prompts/"))

    assert "calm-otter-1" in page
    assert "empty-run" not in page
    assert "1 of 1 runs" in page


def test_viewers_can_read_and_other_teams_cannot(bob_client, charlie_client, seen):
    page = bob_client.get(address(seen))
    assert page.status_code == 200
    assert "Create dataset" not in words(page)
    assert make(bob_client, seen).status_code == 403
    assert charlie_client.get(address(seen)).status_code == 404
    assert make(charlie_client, seen).status_code == 404
    assert not Dataset.objects.filter(name="Hard").exists()
