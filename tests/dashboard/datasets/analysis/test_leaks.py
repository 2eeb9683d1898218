"""Leaks: held-out rows that are also in the training version."""

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets import row_filters
from dashboard.datasets.analysis import leaks
from dashboard.datasets.analysis.leaks import (
    Fingerprints,
    find_leaks,
    find_near,
    make_leak,
)
from dashboard.datasets.analysis.statistics import SIMILARITY, signature, similarity
from dashboard.datasets.models import DatasetVersion, VersionLeak
from dashboard.datasets.row import Row
from dashboard.datasets.splits import split_version
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import waiting
from tests.page_client import words

WORDS = "one train leaves the town at nine and another one at noon so when do they"
LONG = f"{WORDS} meet again if both go at the same speed all day long"
TRAINED = [
    Row(prompt="What is 1?", answer="1"),
    Row(prompt="What is 2?"),
    Row(prompt=f"{LONG}?"),
    Row(prompt="What is 1?", answer="uno"),
]
HELD_OUT = [
    Row(prompt="Something else entirely, which no one trains on"),
    Row(prompt="WHAT is  2?"),
    Row(prompt="What is 1?", answer="1"),
    Row(prompt=f"{LONG} then?"),
    Row(prompt=[{"role": "user", "content": "What is 2?"}]),
]


def create(team: Team, name: str, rows: list[Row]) -> DatasetVersion:
    return store_dataset(team, rows, name=name)


@pytest.fixture(scope="module")
def held_out(shared_team) -> DatasetVersion:
    return create(shared_team, "Eval", HELD_OUT)


@pytest.fixture(scope="module")
def trained_on(shared_team) -> DatasetVersion:
    return create(shared_team, "Train", TRAINED)


def prints(rows: list[Row]) -> Fingerprints:
    made = Fingerprints(len(rows))
    for row in rows:
        made.add(row)
    return made


def get(client: Client, held_out: DatasetVersion, **query: Any) -> Any:
    return client.get(f"/alpha/datasets/{held_out.dataset_id}/leaks", query)


def test_each_row_is_found_once_and_as_the_nearest_kind():
    found = find_leaks(prints(HELD_OUT), prints(TRAINED))

    assert found.exact.tolist() == [[2, 0]]
    assert found.words.tolist() == [[1, 1], [4, 1]]
    assert found.near.tolist() == [[3, 2]]


def test_lists_that_share_nothing_have_no_leaks():
    found = find_leaks(prints(HELD_OUT[:1]), prints(TRAINED[:2]))

    assert not found.exact.size + found.words.size + found.near.size


def test_the_nearest_match_equals_a_full_comparison():
    texts = [
        f"{LONG} {' '.join(['extra'] * (i % 5))} {i % 7} and then" for i in range(40)
    ]
    made = [one for text in texts if (one := signature(text)) is not None]
    ours, theirs = np.stack(made[:15]), np.stack(made[15:])

    found = dict(find_near(ours, theirs).tolist())

    for at, one in enumerate(ours):
        shares = similarity(one, theirs)
        if shares.max() >= SIMILARITY:
            assert shares[found[at]] == shares.max(), at
        else:
            assert at not in found
    assert len(found) > 5


def test_equal_candidates_give_the_first():
    one = signature(LONG)
    assert one is not None
    others = np.tile(one, (50, 1))

    assert find_near(one[None], others).tolist() == [[0, 0]]


def test_large_versions_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(leaks, "MAX_COMPARED", 4)
    rows = [Row(prompt=f"{LONG} {i} {a}") for i, a in product(range(5), "ab")]

    made = prints(rows)

    assert made.every == 3
    assert made.compared.tolist() == [0, 3, 6, 9]


def test_the_page_shows_pairs_of_each_kind(alice_client, held_out, trained_on):
    def shown(kind: str) -> Any:
        return get(alice_client, held_out, against=trained_on.pk, kind=kind)

    first = shown("").context
    assert [count for *_, count in first["kinds"]] == [1, 2, 1]
    compared = first["found"].result["compared"]
    assert [one["num_rows"] for one in compared] == [2, 1]
    assert [one["num_too_short"] for one in compared] == [3, 3]
    pairs = {
        kind: [
            (pair.held_out.position, pair.trained_on.position)
            for pair in shown(kind).context["page"].items
        ]
        for kind in ("exact", "words", "near")
    }
    assert pairs == {"exact": [(2, 0)], "words": [(1, 1), (4, 1)], "near": [(3, 2)]}
    near = shown("near")
    assert re.search(r">0\.[89]\d<|>1\.00<", near.content.decode())
    link = f"/alpha/datasets/{trained_on.dataset_id}/?version=1&amp;row=2#row-2"
    assert link in near.content.decode()


def test_pairs_are_paged(alice_client, team):
    one = create(team, "One", [Row(prompt=f"p {i}") for i in range(45)])
    other = create(team, "Other", [Row(prompt=f"p {i}") for i in range(44, -1, -1)])

    answer = get(alice_client, one, against=other.pk, **{"from": 40})

    assert "41–45 of 45 rows" in words(answer)
    pairs = answer.context["page"].items
    assert [pair.trained_on.position for pair in pairs] == [4, 3, 2, 1, 0]


def test_the_halves_of_a_split_are_compared_and_do_not_leak(
    alice_client, trained_on, alice
):
    rule = {"by": "share", "share": 50.0, "seed": 1}
    made = split_version(
        trained_on, rule=rule, train_name="a", eval_name="b", user=alice
    )
    assert made.eval

    answer = get(alice_client, made.eval)

    assert answer.context["other"] == made.train
    assert [count for *_, count in answer.context["kinds"]][:2] == [0, 0]


def test_large_versions_are_left_to_a_worker(
    alice_client, held_out, trained_on, monkeypatch
):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)

    text = words(get(alice_client, held_out, against=trained_on.pk))
    assert "0 of 9" in text
    found = VersionLeak.objects.get()
    assert waiting() == [("dataset.leak", found.pk)]

    make_leak(found.pk)

    answer = get(alice_client, held_out, against=trained_on.pk)
    assert [count for *_, count in answer.context["kinds"]] == [1, 2, 1]
    assert len(waiting()) == 1


def test_nothing_is_compared_with_itself_or_nothing(alice_client, held_out):
    for against in ("", str(held_out.pk)):
        assert get(alice_client, held_out, against=against).context["found"] is None
    for against in ("x", "9" * 9, "-1"):
        assert get(alice_client, held_out, against=against).status_code == 404
    assert not VersionLeak.objects.exists()


def test_another_teams_version_is_not_found(alice_client, held_out):
    other = Team.objects.create(slug="zeta", name="Zeta")
    theirs = create(other, "Theirs", TRAINED)

    assert get(alice_client, held_out, against=theirs.pk).status_code == 404
