"""Splits of a version into two halves."""

from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from dashboard.accounts.models import User
from dashboard.datasets import row_filters
from dashboard.datasets.analysis.statistics import normalized, prompt_text
from dashboard.datasets.models import Dataset, DatasetVersion, VersionSplit
from dashboard.datasets.row import Row
from dashboard.datasets.row_storage import write_rows
from dashboard.datasets.splits import is_held_out, make_split, split_version
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import waiting
from tests.page_client import words

ROWS = [
    *(
        Row(prompt=f"What is {i}?", answer=str(i), columns={"level": i % 3, "i": i})
        for i in range(200)
    ),
    *(Row(prompt=f" WHAT  is {i}?", columns={"level": 0}) for i in range(50)),
    Row(prompt=[{"role": "user", "content": "What is 7?"}], columns={"level": "1"}),
]
SHARE = {"by": "share", "share": 20.0, "seed": 5}


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    mapping = {"prompt": "q", "answer": "a", "columns": ["level", "i"]}
    return store_dataset(shared_team, ROWS, mapping=mapping)


def split(version: DatasetVersion, user: User, **changes: Any) -> VersionSplit:
    names = {"train_name": "Sums train", "eval_name": "Sums eval"}
    return split_version(version, user=user, **{"rule": SHARE, **names, **changes})


def rows_of(version: DatasetVersion | None) -> list[Row]:
    assert version
    return [row.as_row() for row in version.rows.order_by("position")]


def test_each_row_is_in_one_half_and_in_its_order(version, alice, tmp_path):
    made = split(version, alice)

    train, held_out = rows_of(made.train), rows_of(made.eval)
    assert [row for row in ROWS if row in train] == train
    assert [row for row in ROWS if row in held_out] == held_out
    assert len(train) + len(held_out) == len(ROWS)
    assert made.result == {"train": len(train), "eval": len(held_out)}
    assert 20 < len(held_out) < 90
    assert made.eval
    write_rows(made.eval, tmp_path / "rows.jsonl")  # which compares the hash


def test_prompts_of_the_same_words_are_in_the_same_half(version, alice):
    made = split(version, alice)

    train, held_out = (
        {normalized(prompt_text(row.prompt)) for row in rows_of(half)}
        for half in (made.train, made.eval)
    )
    assert not train & held_out


def test_a_split_depends_on_its_seed(version, alice):
    one = split(version, alice)
    same = split(version, alice, train_name="b", eval_name="c")
    other = split(
        version, alice, rule={**SHARE, "seed": 6}, train_name="d", eval_name="e"
    )

    assert one.eval
    assert same.eval
    assert other.eval
    assert same.eval.content_sha256 == one.eval.content_sha256
    assert other.eval.content_sha256 != one.eval.content_sha256


def test_a_split_matches_a_hand_computed_case():
    # int.from_bytes(blake2b(b"5\0what is 1?", digest_size=8), "little") / 2**64
    assert not is_held_out("What is 1?", share=67.4, seed=5)
    assert is_held_out("What is 1?", share=67.6, seed=5)


@given(st.text(), st.integers(0, 9), st.floats(1, 50), st.floats(0, 49))
def test_a_larger_share_holds_out_what_a_smaller_one_does(prompt, seed, share, more):
    if is_held_out(prompt, share=share, seed=seed):
        assert is_held_out(prompt, share=share + more, seed=seed)


def test_by_a_columns_value_exactly_those_rows_are_held_out(version, alice):
    made = split(version, alice, rule={"by": "column", "column": "level", "value": "1"})

    wanted = [row for row in ROWS if str(row.columns["level"]) == "1"]
    assert rows_of(made.eval) == wanted
    assert made.result == {"train": len(ROWS) - len(wanted), "eval": len(wanted)}


def test_a_missing_value_equals_the_empty_one(version, alice):
    made = split(version, alice, rule={"by": "column", "column": "i", "value": ""})

    assert rows_of(made.eval) == [row for row in ROWS if "i" not in row.columns]


def test_a_half_links_to_its_source(alice_client, version, alice):
    made = split(version, alice)

    assert made.eval
    assert made.eval.source["parent_sha256"] == version.content_sha256
    assert made.eval.source_text.startswith("eval split")
    assert made.eval.mapping == version.mapping
    page = alice_client.get(f"/alpha/datasets/{made.eval.dataset_id}/versions")
    assert made.eval.source_text in words(page)
    assert f'href="/alpha/datasets/{version.dataset_id}/?version=1"' in str(
        page.content
    )


def post(client: Client, version: DatasetVersion, **changes: Any) -> Any:
    form = {
        "version": "1",
        "by": "share",
        "share": "20",
        "seed": "5",
        "train_name": "A",
        "eval_name": "B",
        **changes,
    }
    return client.post(f"/alpha/datasets/{version.dataset_id}/split", form)


def test_the_form_makes_two_datasets(alice_client, version):
    answer = post(alice_client, version)

    assert answer.status_code == 302
    (split,) = alice_client.get(answer.url).context["splits"]
    assert split.rule == SHARE
    assert [half.dataset.name for half in (split.train, split.eval)] == ["A", "B"]
    assert set(Dataset.objects.values_list("name", flat=True)) == {"Sums", "A", "B"}


def test_an_invalid_split_stores_nothing(alice_client, version):
    for changes, field in (
        ({"share": "0"}, "share"),
        ({"share": "nan"}, "share"),
        ({"share": ""}, "share"),
        ({"seed": "x"}, "seed"),
        ({"train_name": "Sums"}, "train_name"),
        ({"eval_name": "A"}, "eval_name"),
        ({"by": "column", "column": "nope"}, "column"),
        ({"by": "column", "column": "level", "value": "9"}, "__all__"),
        ({"by": "other"}, "by"),
    ):
        answer = post(alice_client, version, **changes)

        assert answer.status_code == 422
        assert field in answer.context["form"].errors, changes
    assert Dataset.objects.count() == 1
    assert not VersionSplit.objects.exists()


@pytest.mark.parametrize("by", ["column", ""])
def test_rows_without_columns_are_split_by_share_alone(alice_client, team, by):
    bare = store_dataset(
        team,
        [Row(prompt=f"{i}?") for i in range(9)],
        name="Bare",
        mapping={"prompt": "prompt", "answer": None, "columns": []},
    )

    answer = post(alice_client, bare, by=by, column="level", value="1")

    assert answer.status_code == 422
    assert not VersionSplit.objects.exists()


def test_a_taken_name_makes_neither_half(version, alice, team):
    Dataset.objects.create(team=team, name="Sums eval")

    made = split(version, alice)

    assert "Sums eval" in made.problem
    assert not Dataset.objects.filter(name="Sums train").exists()


def test_a_large_version_is_left_to_a_worker_and_made_once(
    alice_client, version, alice, monkeypatch
):
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 3)
    monkeypatch.setattr(row_filters, "ROWS_AT_ONCE", 7)

    made = split(version, alice)

    url = f"/alpha/datasets/{version.dataset_id}/split"
    assert "0 of 251 rows" in words(alice_client.get(url))
    assert waiting() == [("dataset.split", made.pk)]

    make_split(made.pk)
    make_split(made.pk)

    assert Dataset.objects.count() == 3
    assert not alice_client.get(url).context["is_working"]


def test_rows_missing_from_the_database_are_an_error(version, alice):
    version.rows.filter(position=3).delete()

    made = split(version, alice)

    assert "250" in made.problem
    assert "251" in made.problem
