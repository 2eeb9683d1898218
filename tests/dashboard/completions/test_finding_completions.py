"""The completions tab finds completions across a run's steps."""

import re

import pytest
from django.http import QueryDict
from django.urls import reverse

from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.search import results
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient

PLACE = re.compile(r'data-found="(\d+)/(\d+)/(\d+)"')


@pytest.fixture(params=["from the table", "from blocks"])
def run(team, request) -> Run:
    run = make_run(team)
    make_group(run, step=1, prompt_index=4, rewards=(1.2, 0.0), texts=["Héllo", "b"])
    make_group(
        run,
        step=2,
        prompt_index=5,
        rewards=(0.2, None),
        texts=["100% \\ sure", "d"],
        end_reasons=["length", "stop"],
    )
    if request.param == "from blocks":
        make_blocks(run)
    return run


def get(client: PageClient, run: Run, query: str = "") -> str:
    return client.read(reverse("completions", args=["alpha", run.pk]) + query)


def found(html: str) -> list[tuple[int, int, int]]:
    return [(int(a), int(b), int(c) + 1) for a, b, c in PLACE.findall(html)]


A, B, C, D = (1, 4, 1), (1, 4, 2), (2, 5, 1), (2, 5, 2)


QUERIES = [
    ("", [C, D, A, B]),
    ("?sort=step", [A, B, C, D]),
    ("?sort=-reward", [A, C, B, D]),
    ("?sort=reward", [B, C, A, D]),
    ("?sort=-length&last_step=1", [B, A]),
    ("?first_step=2", [C, D]),
    ("?min_reward=0.1&sort=step", [A, C]),
    ("?max_reward=0&sort=step", [B]),
    ("?end=length", [C]),
    ("?prompt=4", [A, B]),
    ("?min_advantage=0.1", [A]),
    ("?max_advantage=-0.1", [B]),
    ("?min_length=11&sort=step", [B, D]),
    ("?max_length=10&sort=step", [A, C]),
    ("?rule=answer&sort=step", [A, B, C]),
    ("?rule=answer&min_score=0.5", [A]),
    ("?rule=format&max_score=0.5", [B]),
    ("?rule=format&min_score=0.9&max_score=1&sort=step", [A, C]),
    ("?rule=gone", []),
    ("?text=h%C3%89LLO", [A]),
    ("?text=100%25+%5C", [C]),
    ("?text=%25", [C]),
    ("?text=_", []),
    ("?text=sure&end=stop", []),
    ("?text=L&sort=step&last_step=1", [A]),
    ("?text=HÉLLO&match=words", [A]),
    ("?text=hél&match=words", []),
    ("?text=sure+100&match=words", [C]),
    ("?text=%22sure+100%22&match=words", []),
    ("?text=sure+or+b&match=words&sort=step", [B, C]),
    ("?text=-sure&match=words&sort=step", [A, B, D]),
    ("?text=%21&match=words", []),
    ("?outcome=right", [A]),
    ("?outcome=not_right&sort=step", [B, C]),
    ("?outcome=unscored", [D]),
]


def test_filters_and_orders(run):
    wrong = {}
    for query, expected in QUERIES:
        form = CompletionFilterForm.of_run(QueryDict(query[1:]), run)
        places = [
            (each.group.step, each.group.prompt_index, each.position + 1)
            for each in results.find(run, form, None).completions
        ]
        if places != expected:
            wrong[query] = places

    assert wrong == {}


def test_the_page_filters_by_its_address(alice_client, run):
    for query, expected in (QUERIES[6], QUERIES[15], QUERIES[20]):
        assert found(get(alice_client, run, query)) == expected


def test_each_completion_links_to_its_group(alice_client, run):
    html = get(alice_client, run)

    url = reverse("group", args=["alpha", run.pk, 2, 5])
    assert f'href="{url}#completion-1"' in html


def test_superseded_completions_and_other_runs_are_not_found(alice_client, team, run):
    make_group(run, step=3, superseded_by=2)
    make_group(make_run(team, "other"), step=4)

    assert found(get(alice_client, run)) == [C, D, A, B]


def test_an_empty_range_is_refused_at_its_field(alice_client, run):
    html = get(alice_client, run, "?first_step=9&last_step=2")

    assert 'id="id_last_step_error"' in html


BAD_QUERIES = [
    "?text=%00",
    "?min_reward=x",
    "?min_reward=nan",
    "?max_reward=inf",
    "?prompt=99999999999999999999",
    "?first_step=99999999999999999999",
    "?last_step=99999999999999999999",
    "?min_reward=1e300",
    "?max_advantage=-1e300",
    "?rule=answer&min_score=1e300",
    "?min_score=x",
    "?text=a&start=99999999999",
    "?text=a&start=2147483647&before=7",
    "?text='&match=words",
    "?text=%22%5C'+|+%26+!x&match=words",
    "?text=-&match=words",
    "?text=a/b+c.de+f@g.hi&match=words",
    "?page=999",
    "?page=0",
    "?sort=id",
]


@pytest.mark.parametrize("run", ["from blocks"], indirect=True)
def test_a_bad_parameter_never_breaks_the_page(alice_client, run):
    for query in BAD_QUERIES:
        get(alice_client, run, query)


def test_pages_are_numbered_x_of_y(alice_client, run, monkeypatch):
    monkeypatch.setattr(results, "PAGE_SIZE", 2)

    first, second = (get(alice_client, run, f"?page={n}&max_length=11") for n in (1, 2))

    assert "1–2 of 4" in first
    assert "3–4 of 4" in second
    assert found(first) + found(second) == [C, D, A, B]
    assert 'href="?page=2&amp;max_length=11"' in first


def test_a_page_beyond_the_last_is_the_last(alice_client, run):
    assert found(get(alice_client, run, "?page=999")) == [C, D, A, B]


def test_an_empty_result_links_to_all_completions(alice_client, run):
    assert "No completions match" in get(alice_client, run, "?text=nowhere")


def test_a_completion_with_markup_stays_text(alice_client, run):
    make_group(run, step=9, rewards=(0.0,), texts=["<script>alert(1)</script>"])

    html = get(alice_client, run)

    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html


def test_a_page_costs_the_same_queries_however_many_are_found(
    alice_client, run, django_assert_num_queries
):
    for step in range(10, 30):
        make_group(run, step=step, rewards=(0.0, 1.2))

    with django_assert_num_queries(15):
        get(alice_client, run)


def test_a_score_without_its_rule_is_refused(alice_client, run):
    html = get(alice_client, run, "?min_score=0.5")

    assert 'id="id_rule_error"' in html
    assert html.count('<details class="menu" data-menu open>') == 1


def test_a_chip_says_what_it_filters_by_and_is_removed(alice_client, run):
    response = alice_client.get(
        reverse("completions", args=["alpha", run.pk]),
        {
            "outcome": "right",
            "min_reward": "0.5",
            "first_step": "1",
            "last_step": "2",
            "rule": "answer",
            "max_score": "1",
            "by": "me",
            "min_length": "3",
            "page": "1",
        },
    )

    chips = {chip.title: chip for chip in response.context["chips"]}
    assert {title: chip.words for title, chip in chips.items() if chip.words} == {
        "Outcome": "correct",
        "Reward": "≥ 0.5",
        "Steps": "1–2",
        "Rule score": "answer, ≤ 1",
        "Annotated": "by me",
        "More": "length ≥ 3",
    }
    query = QueryDict(chips["Rule score"].without[1:])
    assert sorted(query) == [
        "by", "first_step", "last_step", "min_length", "min_reward", "outcome",
    ]  # fmt: skip
    assert response.context["last_chip"].title == "More"


def test_an_empty_result_offers_to_remove_the_last_filter(alice_client, run):
    html = get(alice_client, run, "?outcome=right&min_reward=99")

    assert found(html) == []
    assert 'class="btn btn-primary" href="?outcome=right"' in html


def test_matches_are_marked_in_an_excerpt(alice_client, run):
    text = "word " * 200 + "needle <b> " + "word " * 200
    make_group(run, step=9, rewards=(0.0,), texts=[text])

    by_text, by_words = (
        get(alice_client, run, f"?text={query}")
        for query in ("NEEDLE+%3Cb", "-sure+needle&match=words")
    )

    assert by_text.count("<mark>") == 1
    assert "<mark>needle &lt;b</mark>" in by_text
    assert "<mark>needle</mark>" in by_words
    assert len(by_text) < len(get(alice_client, run, "?first_step=9")) + 2_000


def test_a_result_shows_its_prompt(alice_client, run):
    html = get(alice_client, run, "?prompt=4")

    assert html.count("<bdi>What is 4 + 1?</bdi></a>") == 2


def test_an_empty_range_of_further_filters_is_named(alice_client, run):
    html = get(alice_client, run, "?min_length=5&max_length=3")

    assert 'id="id_max_length_error"' in html
