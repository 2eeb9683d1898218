"""The same prompt as two runs answered it, and how often one beats the other."""

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.analysis.compare.win_rate import (
    MAX_PROMPTS,
    find_common_steps,
    nearest_steps,
)
from dashboard.datasets.models import DatasetRow
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_dataset, make_group, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def ours(shared_team) -> Run:
    return make_run(shared_team, "ours")


@pytest.fixture(scope="module")
def theirs(shared_team, ours) -> Run:
    return make_run(shared_team, "theirs", dataset_version=ours.dataset_version)


def get_page(client: Client, *runs: Run, **query: object) -> Any:
    ids = ",".join(str(run.pk) for run in runs)
    url = reverse("compare_prompt", args=["alpha"])
    response = client.get(url, {"runs": ids, **query})
    assert response.status_code == 200
    return response


def get(client: Client, *runs: Run, **query: object) -> str:
    return re.sub(r"\s+", " ", get_page(client, *runs, **query).text)


def test_two_runs_are_compared_at_a_common_step_or_the_two_nearest():
    for ours, theirs, near, expected in [
        ([1, 4, 9], [4, 9, 12], None, (9, 9)),
        ([1, 4, 9], [4, 9, 12], 5, (4, 4)),
        ([3], [1, 8], None, (3, 1)),
        ([2, 10], [4, 12], 1, (2, 4)),
        ([2, 10], [4, 12], None, (10, 12)),
    ]:
        met = nearest_steps(np.array(ours), np.array(theirs), near)
        assert met == expected, (ours, theirs, near)


def test_completions_are_aligned_by_their_rank(alice_client, ours, theirs):
    make_group(ours, step=3, prompt_index=7, rewards=(0.0, 1.2, 0.2))
    make_group(theirs, step=3, prompt_index=7, rewards=(0.2, None))

    html = get(alice_client, ours, theirs, prompt=7)
    sampled = get(alice_client, ours, theirs, prompt=7, align="sampled")

    def links(page: str) -> list[str]:
        return re.findall(r"#completion-(\d)\"", page)

    # Of each pair A's, then B's; the last pair has A's alone.
    assert links(html) == ["1", "0", "2", "1", "0"]
    assert links(sampled) == ["0", "0", "1", "1", "2"]
    assert 'data-diff-with="text-A-1"' in html


def test_the_win_rate_is_of_all_pairs_and_ties_count_half(alice_client, ours, theirs):
    make_group(ours, step=3, prompt_index=7, rewards=(1.2, 0.2))
    make_group(theirs, step=3, prompt_index=7, rewards=(0.2, 0.0, None))

    context = get_page(alice_client, ours, theirs, prompt=7).context

    # 1.2 beats both, 0.2 ties with one and beats the other: 3.5 of 4.
    assert context["prompt_pair"].rate == 3.5 / 4
    assert [len(side.rewards) for side in context["sides"]] == [2, 2]
    assert context["prompt_pair"].means == pytest.approx((0.7, 0.1))
    means = {rule.name: rule.means for rule in context["rules"]}
    assert means["answer"] == pytest.approx((0.5, 0))
    assert means["format"] == pytest.approx((1, 0.5))


def test_nearest_steps_are_not_equal(alice_client, ours, theirs):
    make_group(ours, step=3, prompt_index=7)
    make_group(theirs, step=5, prompt_index=7)

    common_step = get_page(alice_client, ours, theirs, prompt=7).context["common_step"]

    assert (common_step.steps, common_step.is_equal) == ((3, 5), False)


def test_the_steps_before_and_after_are_those_of_both(alice_client, ours, theirs):
    for step in (1, 2, 3, 4, 5):
        make_group(ours, step=step, prompt_index=7)
        if step != 2:
            make_group(theirs, step=step, prompt_index=7)

    html = get(alice_client, ours, theirs, prompt=7, step=3)

    assert "← Step 1<" in html
    assert "Step 4 →<" in html


def test_all_prompts_are_listed_and_sorted_by_win_rate(alice_client, ours, theirs):
    for prompt, reward in [(1, 0.2), (2, 1.2), (3, 0.0)]:
        make_group(ours, step=prompt, prompt_index=prompt, rewards=(reward,))
        make_group(theirs, step=prompt, prompt_index=prompt, rewards=(0.2,))
    make_group(ours, step=9, prompt_index=4)

    page = get_page(alice_client, ours, theirs, sort="-rate")

    assert re.findall(r">Prompt (\d)</a>", page.text) == ["2", "1", "3"]
    assert page.context["common_steps"].num_common == 3
    summary = page.context["summary"]
    assert (summary.num, summary.rate) == (3, 0.5)
    assert [prompt_pair.rate for prompt_pair, _ in page.context["rows"]] == [1, 0.5, 0]


def test_runs_with_different_rewards_have_no_win_rate(alice_client, ours, theirs):
    for run in (ours, theirs):
        make_group(run, step=1, prompt_index=1)
    alike = get_page(alice_client, ours, theirs, prompt=1)
    theirs.config["reward"]["recipe"]["rules"][1]["weight"] = 3.0
    theirs.save(update_fields=["config"])

    page = get_page(alice_client, ours, theirs, prompt=1)

    assert alike.text.count("Win rate of A") > 0
    assert "Win rate of A" not in page.text
    assert "Not comparable" in page.text


def test_prompts_of_other_versions_are_matched_by_their_rows(alice_client, team, ours):
    version = make_dataset(team)
    theirs = make_run(team, "theirs", dataset_version=version)
    rows = [(ours.dataset_version, 7, "1 + 1?"), (ours.dataset_version, 8, "gone")]
    rows += [(version, 2, "1 + 1?"), (version, 8, "other"), (version, 9, "gone")]
    for where, position, prompt in rows:
        DatasetRow.objects.create(
            version=where,
            position=position,
            prompt=prompt,
            answer="2",
            answer_is_list=position == 9,  # so it is another row
        )
    for prompt in (7, 8):
        make_group(ours, step=3, prompt_index=prompt)
    for prompt in (2, 8):
        make_group(theirs, step=3, prompt_index=prompt)

    found = get_page(alice_client, ours, theirs, prompt=7).context
    other = get_page(alice_client, ours, theirs, prompt=8).context

    assert found["common_step"].prompts == (7, 2)
    assert re.findall(r"\d+", found["common_steps"].matching.note)[:2] == ["1", "2"]
    assert "theirs" in other["reason"]
    assert "8" in other["reason"]


def test_a_prompt_that_one_run_has_not_sampled_has_a_reason(alice_client, ours, theirs):
    make_group(ours, step=3, prompt_index=0)
    make_group(theirs, step=3, prompt_index=1)
    make_group(ours, step=3, prompt_index=7)
    make_group(theirs, step=3, prompt_index=7, superseded_by=2)

    for prompt, whose in [(0, "theirs"), (1, "ours"), (7, "theirs")]:
        reason = get_page(alice_client, ours, theirs, prompt=prompt).context["reason"]
        assert whose in reason
        assert str(prompt) in reason


def test_any_two_of_the_compared_runs_are_chosen(alice_client, team, ours, theirs):
    third = make_run(team, "third", dataset_version=ours.dataset_version)
    for run in (ours, theirs, third):
        make_group(run, step=3, prompt_index=7)

    html = get(alice_client, ours, theirs, third, a=third.pk, b=theirs.pk, prompt=7)
    same = get(alice_client, ours, theirs, a=theirs.pk, b=theirs.pk, prompt=7)

    chosen = rf'value="{third.pk}" selected>.*?value="{theirs.pk}" selected>'
    assert re.search(chosen, html)
    assert re.search(
        rf'value="{theirs.pk}" selected>.*value="{ours.pk}" selected>', same
    )


def test_the_prompts_sampled_last_are_kept_where_there_are_too_many(
    ours, theirs, monkeypatch
):
    monkeypatch.setattr("dashboard.analysis.compare.win_rate.MAX_PROMPTS", 2)
    for step, prompt in [(1, 0), (2, 1), (3, 2)]:
        make_group(ours, step=step, prompt_index=prompt)
        make_group(theirs, step=step, prompt_index=prompt)

    found = find_common_steps((ours, theirs), None)

    assert [m.prompts for m in found.found] == [(1, 1), (2, 2)]
    assert found.num_common == 3
    assert MAX_PROMPTS == 2_000


def test_another_teams_runs_are_404(alice_client, charlie, ours):
    foreign = make_run(Team.objects.get(slug="other"), "stranger")
    url = reverse("compare_prompt", args=["alpha"])

    answer = alice_client.get(url, {"runs": f"{ours.pk},{foreign.pk}"})

    assert answer.status_code == 404


def test_any_query_is_answered(alice_client, ours, theirs):
    make_group(ours, step=3, prompt_index=7)
    make_group(theirs, step=3, prompt_index=7)
    ids = f"{ours.pk},{theirs.pk}"
    url = reverse("compare_prompt", args=["alpha"])
    odd = [{"prompt": "x"}, {"step": "-1"}, {"sort": "moon"}, {"runs": str(ours.pk)}]

    assert alice_client.get(url).status_code == 200
    for query in odd:
        given = {"runs": ids, "prompt": "7"} | query
        assert alice_client.get(url, given).status_code == 200, query
