"""A prompt's page: its text, its learning curve, and all its completions."""

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.completions.learning_curve import (
    MAX_POINTS,
    describe,
    draw_curves,
    make_points,
)
from dashboard.completions.prompt_visits import VISIT
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import words


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    run = make_run(shared_team)
    for step, num_right in enumerate((0, 1, 4), start=1):
        rewards = (1.2,) * num_right + (0.2,) * (4 - num_right)
        texts = [f"text {step}.{i}" for i in range(4)]
        ends = ["length", "stop", "stop", "stop"]
        make_group(run, step, 6, rewards, texts=texts, end_reasons=ends)
        make_group(run, step, 7, (0.0, 0.0), texts=["other", "other"])
    return run


def get(client: Client, run: Run, query: str = "", prompt: int = 6) -> Any:
    return client.get(reverse("run_prompt", args=["alpha", run.pk, prompt]) + query)


def texts(answer: Any) -> list[str]:
    return re.findall(r">(text [^<]*)</div>", answer.text)


def test_it_shows_the_prompt_and_its_pass_rate(alice_client, run):
    answer = get(alice_client, run)
    page = words(answer)

    assert "What is 6 + 1?" in page
    assert "41.7% (5 of 12)" in page
    assert "+100 points" in page
    assert "3 ×, last at step 3" in page
    assert "solved step 2" in page
    assert 'data-kind="solved"' in answer.text


def test_all_completions_are_listed_newest_first(alice_client, run):
    answer = get(alice_client, run)

    wanted = [f"text {step}.{i}" for step in (3, 2, 1) for i in range(4)]
    assert texts(answer) == wanted
    page = words(answer)
    assert "12 completions, newest first" in page
    _, _, cut = page.partition("Step 2, completion 1")
    assert re.match(r" reward 1\.2 advantage \+1\.5 10 tokens", cut)
    group = reverse("group", args=["alpha", run.pk, 2, 6])
    assert f'href="{group}#completion-0"' in answer.text


@pytest.mark.parametrize("size", [3, 20, 33])
def test_each_completion_is_on_one_page(alice_client, team, size):
    run = make_run(team)
    wanted = []
    for step in range(1, 4):
        named = [f"text {step}.{i}" for i in range(size)]
        make_group(run, step, 6, (0.0,) * size, texts=named)
        wanted = named + wanted

    pages = -(-len(wanted) // 20)
    found = []
    for number in range(1, pages + 1):
        found += texts(get(alice_client, run, f"?page={number}"))

    assert found == wanted
    beyond = get(alice_client, run, f"?page={pages + 5}")
    assert f"{len(wanted)} completions" in words(beyond)


def test_step_filters_apply_to_the_whole_page(alice_client, run):
    answer = get(alice_client, run, "?last_step=2&visits=1")

    assert texts(answer) == [f"text {s}.{i}" for s in (2, 1) for i in range(4)]
    assert "25% (1 of 4)" in words(answer)
    later = get(alice_client, run, "?first_step=50")
    assert later.status_code == 200
    assert texts(later) == []


def test_figures_show_its_groups(alice_client, run):
    figures = get(alice_client, run).context["figures"]

    (line,) = figures["pass"]["data"]
    assert (list(line["x"]), list(line["y"])) == ([1, 2, 3], [0.0, 0.25, 1.0])
    low, high, mean = figures["reward"]["data"]
    assert mean["y"] == pytest.approx([0.2, 0.45, 1.2])
    assert low["y"] == pytest.approx([0.2, -0.05, 1.2])
    assert high["y"] == pytest.approx([0.2, 0.95, 1.2])


def test_its_table_has_every_group(alice_client, run):
    page = words(get(alice_client, run))

    for visit in ("1 0 of 4 0% 0.2 0", "2 1 of 4 25% 0.45 0.5", "3 4 of 4"):
        assert f"step {visit}" in page


def visits_of(*rows: tuple[int, int, int, float]) -> Any:
    """Step, scored, right and mean."""
    return np.array([(6, s, 4, n, r, mean, 0.5) for s, n, r, mean in rows], VISIT)


def test_a_visit_without_a_score_has_no_point():
    points = make_points(visits_of((1, 4, 1, 0.25), (2, 0, 0, np.nan)))
    figures = draw_curves(points)

    assert figures["pass"]["data"][0]["x"] == [1]
    assert figures["reward"]["data"][2]["x"] == [1]
    assert points[1].share is None
    assert "%" not in describe(points[1:], of="pass")


def test_many_visits_are_pooled():
    rows = [(step, 4, step % 2 * 4, float(step % 2)) for step in range(1, 2_001)]
    points = make_points(visits_of(*rows))

    assert len(points) == MAX_POINTS
    assert (points[0].first, points[0].last, points[0].num_visits) == (1, 4, 4)
    assert (points[0].num_right, points[0].num_scored, points[0].mean) == (8, 16, 0.5)
    assert sum(point.num_right for point in points) == 4_000


def test_a_chart_is_described_in_words():
    points = make_points(visits_of((1, 4, 2, 0.5), (5, 4, 0, 0.0), (9, 4, 3, 0.75)))

    text = describe(points, of="pass")

    # The first, the last, the lowest and the highest.
    assert re.findall(r"(\d+)% at step (\d)", text) == [
        ("50", "1"),
        ("75", "9"),
        ("0", "5"),
        ("75", "9"),
    ]


def test_superseded_groups_do_not_count(alice_client, run):
    run.groups.filter(step=3).update(superseded_by=2)

    assert len(texts(get(alice_client, run))) == 8
    make_group(run, 3, 6, (0.2,), texts=["text new"], attempt=2)
    assert texts(get(alice_client, run))[:2] == ["text new", "text 2.0"]
    assert "9 completions, newest first" in words(get(alice_client, run))
    run.groups.update(superseded_by=2)
    page = words(get(alice_client, run))
    assert "superseded" in page
    assert "What is 6 + 1?" in page


def test_rewards_are_drawn_without_known_correctness(alice_client, run):
    run.config["reward"]["recipe"]["rules"][0]["kind"] = "forgotten"
    run.save()

    answer = get(alice_client, run)

    assert "no longer exists" in words(answer)
    assert len(answer.context["figures"]["reward"]["data"][2]["x"]) == 3
    assert len(answer.context["figures"]["pass"]["data"][0]["x"]) == 0


@pytest.mark.parametrize("prompt", [8, 2**40])
def test_a_prompt_that_was_never_sampled_is_404(alice_client, run, prompt):
    assert get(alice_client, run, prompt=prompt).status_code == 404


def test_the_group_page_links_to_the_prompt(alice_client, run):
    page = alice_client.get(reverse("group", args=["alpha", run.pk, 2, 6])).text

    assert f'href="{reverse("run_prompt", args=["alpha", run.pk, 6])}"' in page


def test_texts_with_markup_stay_text(alice_client, team):
    run = make_run(team)
    made = ["<script>alert(1)</script>", "</div><img src=x>"]
    make_group(run, 1, 0, (0.0, 1.2), texts=made, prompt="<script>alert(2)</script>")

    page = get(alice_client, run, prompt=0).text

    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_a_page_costs_the_same_queries_for_any_number_of_groups(
    alice_client, run, django_assert_num_queries
):
    with django_assert_num_queries(13):
        get(alice_client, run)
    for step in range(4, 30):
        make_group(run, step, 6, (0.0,) * 4)
    with django_assert_num_queries(13):
        get(alice_client, run)


def test_few_steps_have_no_duplicate_ticks():
    def axis(*steps: int) -> dict[str, Any]:
        points = make_points(visits_of(*((step, 4, 1, 0.25) for step in steps)))
        found: dict[str, Any] = draw_curves(points)["pass"]["layout"]["xaxis"]
        return found

    assert axis(21)["dtick"] == 1
    assert axis(21)["range"] == [20.5, 21.5]
    assert axis(3, 10)["dtick"] == 1
    assert axis(3, 11)["nticks"] == 8
    assert axis()["nticks"] == 8
