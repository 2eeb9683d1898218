"""Beside the filters stands how many each would leave."""

import re
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.completions.models import Comment, Group, Tag, Thumb
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_config, make_group, make_run
from tests.page_client import PageClient
from trainer.rewards.scoring import Correctness

VALUE = re.compile(
    r'class="facet-value[^"]*"(?: href="([^"]*)")?( aria-current)?[^>]*>'
    r'([^<]*) <span class="number">([\d,]+)</span>'
)


OUTCOMES = ("correct", "not correct", "no score")


@pytest.fixture(params=["from the table", "from blocks"])
def run(team, alice, request) -> Run:
    run = make_run(team)
    for step in range(1, 17):
        make_group(
            run,
            step=step,
            rewards=(1.2, 0.2, None),
            end_reasons=["stop", "length", "stop"],
        )
    if request.param == "from blocks":
        make_blocks(run)
    first = Group.objects.get(run=run, step=1)
    second = Group.objects.get(run=run, step=2)
    Tag.objects.create(group=first, position=0, user=alice, name="odd & even")
    Tag.objects.create(group=second, position=None, user=alice, name="all")
    Thumb.objects.create(group=first, position=1, user=alice, is_up=True)
    Comment.objects.create(group=second, position=None, user=alice, text="of the group")
    return run


def facets(client: Client, run: Run, query: str = "") -> dict[str, int]:
    html = get(client, run, query)
    return {
        unescape(label): int(count.replace(",", ""))
        for _, _, label, count in VALUE.findall(html)
    }


def get(client: PageClient, run: Run, query: str) -> str:
    return client.read(reverse("completions", args=["alpha", run.pk]) + query)


def test_all_completions_are_counted(alice_client, run):
    found = facets(alice_client, run)

    assert [found[name] for name in OUTCOMES] == [16, 16, 16]
    assert (found["stopped"], found["truncated"]) == (32, 16)
    assert (found["answer at least 1"], found["answer at most 0"]) == (16, 16)
    assert (found["1–2"], found["15–16"]) == (6, 6)
    assert (found["odd & even"], found["all"]) == (1, 3)
    assert (found["good"], found["tagged"]) == (1, 4)
    assert "commented" not in found  # comments of a group do not count


def test_outcomes_of_an_imported_run_are_named_by_its_threshold(alice_client, team):
    config = make_config()
    config["reward"]["right_from"] = 0.2
    run = make_run(team, config=config, source={"tools": ["TRL"]})
    make_group(run, step=1, rewards=(1.2, 0.2, 0.1, None))

    found = facets(alice_client, run)

    assert not found.keys() & set(OUTCOMES[:2])
    assert [count for name, count in found.items() if "0.2" in name] == [2, 1]


def test_without_a_highest_reward_there_are_no_outcomes(
    alice_client, team, monkeypatch
):
    monkeypatch.setattr(
        "dashboard.completions.rewards.correctness_of", lambda *_, **__: Correctness()
    )
    run = make_run(team)
    make_group(run, step=1, rewards=(1.2, None))

    assert facets(alice_client, run).keys() & set(OUTCOMES) == {"no score"}
    assert "data-unknown-outcome" not in get(alice_client, run, "")
    # The address still works, and says why it finds nothing that is correct.
    assert "data-unknown-outcome" in get(alice_client, run, "?outcome=right")


def test_outcomes_known_in_one_phase_are_offered(alice_client, team):
    other = {"rules": [{"name": "gone", "kind": "no_such_rule", "weight": 1.0}]}
    phases = [
        {"name": "first", "num_steps": 10},
        {
            "name": "rest",
            "num_steps": 90,
            "changes": {"reward": {"recipe": other}},
        },
    ]
    run = make_run(team, last_step=20)
    run.config["phases"] = phases
    run.save(update_fields=["config"])
    make_group(run, step=1, rewards=(1.2, None))

    assert set(OUTCOMES) <= facets(alice_client, run).keys()
    assert "data-unknown-outcome" not in get(alice_client, run, "?outcome=right")


QUERIES = [
    "?outcome=right",
    "?first_step=3&last_step=9&end=stop",
    "?text=completion+1&max_reward=1",
    "?tag=all",
    "?mark=any",
    "?mark=tagged&by=me",
    "?by=me&sort=length",
    "?surprise=high_short",
    "?rule=format&min_score=0.5",
    "?rule=answer&max_score=0.5&sort=-reward",
    "?min_length=11&prompt=0",
]


# By outcome, by text and a number, by annotation.
SOME = QUERIES[0], QUERIES[2], QUERIES[5]


@pytest.mark.parametrize(
    ("queries", "every"),
    [(SOME, 6), pytest.param(QUERIES, 1, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_each_facet_link_finds_its_count(alice_client, run, queries, every):
    for query in queries:
        values = VALUE.findall(get(alice_client, run, query))
        links = [v for v in values if v[0] and not v[1]]
        assert links

        for address, _, label, count in links[::every]:
            html = get(alice_client, run, unescape(address))
            assert re.search(rf"\b{count} (match|completion)", html), (query, label)


def test_the_link_of_a_chosen_value_removes_it(alice_client, run):
    html = get(alice_client, run, "?outcome=right&end=stop&page=1")

    link = re.search(r'href="([^"]*)" aria-current="true"[^>]*>correct ', html)
    assert link
    assert unescape(link[1]) == "?end=stop"


def test_steps_are_counted_within_those_found(alice_client, run):
    found = facets(alice_client, run, "?first_step=2&last_step=4&outcome=right")

    assert (found["2"], found["3"], found["4"]) == (1, 1, 1)
    assert "1–2" not in found
