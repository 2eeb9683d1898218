"""Surprise of completions, in flags and in numbers."""

import re

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from dashboard.completions.flags import find_near_duplicates
from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_group,
    make_run,
)
from tests.dashboard.completions.stored import change_completions

PLACE = re.compile(r'data-found="(\d+)/(\d+)/(\d+)"')
WORDS = [f"word{n}" for n in range(44)]  # 40 shingles


def find(client: Client, run: Run, query: str) -> list[tuple[int, int, int]]:
    response = client.get(reverse("completions", args=["alpha", run.pk]) + query)
    found = PLACE.findall(response.content.decode())
    return [(int(a), int(b), int(c) + 1) for a, b, c in found]


def test_a_right_answer_below_the_mean_of_its_group_is_surprising(alice_client, team):
    run = make_run(team)
    group = make_group(run, step=1, rewards=(1.0, 1.2, 1.2, 0.0, 0.4))
    # The second is right with the highest reward, the fourth low and wrong.
    change_completions(group, position=4, rule_scores=[1.0, None])
    make_group(run, step=2, rewards=(1.0, 1.0))  # equal: below no mean

    found = find(alice_client, run, "?surprise=right_low")

    assert found == [(1, 0, 5)]


def test_equal_rewards_are_not_low(alice_client, team):
    run = make_run(team)
    make_group(run, step=1, rewards=(1.1, 1.1, 1.1))

    assert find(alice_client, run, "?surprise=right_low") == []


def test_without_an_answer_rule_correctness_is_unknown(alice_client, team):
    run = make_run(team, rules=RULES[1:])
    make_group(run, step=1, rewards=(1.2, 0.0))
    address = reverse("completions", args=["alpha", run.pk])

    html = alice_client.get(address, {"surprise": "right_low"}).content.decode()

    assert "No rule" in html
    assert find(alice_client, run, "?surprise=right_low") == []


def test_correctness_uses_the_recipe_of_the_phase(alice_client, team):
    reward = {"recipe": {"rules": [RULES[1]]}}
    phases = [
        {"name": "one", "num_steps": 1},
        {"name": "two", "num_steps": 99, "changes": {"reward": reward}},
    ]
    run = make_run(team, config=make_config(phases=phases))
    for step in (1, 2):
        make_group(run, step=step, rewards=(1.0, 1.2))

    assert find(alice_client, run, "?surprise=right_low") == [(1, 0, 1)]


def test_high_and_short_is_by_the_tenths_of_its_step(alice_client, team):
    run = make_run(team)
    # Lengths rise from 10 by 1: the first two of 20 are the shortest tenth.
    group = make_group(run, step=1, rewards=(1.2, 0.0, *[0.2] * 16, 1.2, 1.2))
    make_group(run, step=2, rewards=(0.2,) * 20)  # equal rewards: none is high
    change_completions(group, position=1, reward=1.0)

    assert find(alice_client, run, "?surprise=high_short") == [(1, 0, 1)]


def test_a_step_of_equal_lengths_has_no_short_ones(alice_client, team):
    run = make_run(team)
    group = make_group(run, step=1, rewards=(1.2, *[0.0] * 11))
    change_completions(group, num_tokens=5)

    assert find(alice_client, run, "?surprise=high_short") == []


def test_near_duplicates_are_found_once_there_is_a_block(alice_client, team):
    run = make_run(team)
    texts = [" ".join(WORDS), " ".join([*WORDS[:-1], "else"]), "different"]
    make_group(run, step=1, rewards=(1.2, 0.0, 0.0), texts=texts)
    address = reverse("completions", args=["alpha", run.pk])

    before = alice_client.get(address, {"surprise": "near"}).content.decode()
    make_blocks(run)

    assert "from step 1" in before
    assert find(alice_client, run, "?surprise=near&sort=step") == [(1, 0, 1), (1, 0, 2)]


@pytest.mark.parametrize(
    ("num_changed", "is_near"),
    [
        (4, True),  # 36 of 44 shingles are common: 0.82
        (5, False),  # 35 of 45: 0.78
    ],
)
def test_near_is_a_jaccard_similarity_of_0_8(num_changed, is_near):
    other = [*WORDS[:-num_changed], *(f"else{n}" for n in range(num_changed))]

    found = find_near_duplicates([" ".join(WORDS), " ".join(other)])

    assert found == [is_near, is_near]


@given(st.lists(st.text(st.sampled_from("ab "), max_size=30), max_size=5))
def test_near_duplicates_are_those_of_all_pairs(texts):
    def shingles(text: str) -> set[tuple[str, ...]]:
        words = tuple(text.split())
        return {words[i : i + 5] for i in range(len(words) - 4)} or {words}

    def jaccard(a: str, b: str) -> float:
        return len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b))

    expected = [
        any(jaccard(a, b) >= 0.8 for j, b in enumerate(texts) if i != j)
        for i, a in enumerate(texts)
    ]

    assert find_near_duplicates(texts) == expected
