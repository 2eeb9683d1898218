"""What two lists of rows differ by, against counting them by hand."""

import random
from collections import Counter

import numpy as np

from dashboard.datasets.analysis.differences import compare
from dashboard.datasets.analysis.statistics import hash_of


def diff(old: list[tuple[str, str]], new: list[tuple[str, str]]):
    def hashes(texts: list[str]) -> np.ndarray:
        return np.array([hash_of(text) for text in texts], np.uint64)

    return compare(
        hashes([f"{prompt}\0{answer}" for prompt, answer in old]),
        hashes([prompt for prompt, _ in old]),
        hashes([f"{prompt}\0{answer}" for prompt, answer in new]),
        hashes([prompt for prompt, _ in new]),
    )


def test_rows_are_added_removed_changed_and_moved():
    old = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]
    new = [("b", "2"), ("c", "3"), ("a", "1"), ("f", "6"), ("d", "7")]

    found = diff(old, new)

    assert found.removed.tolist() == [4]
    assert found.added.tolist() == [3]
    assert found.changed.tolist() == [[3, 4]]
    assert (found.num_same, found.num_moved) == (3, 1)


def test_a_row_counts_as_often_as_it_occurs():
    found = diff([("a", "1")] * 3, [("a", "1")] * 5)

    assert found.removed.tolist() == []
    assert found.added.tolist() == [3, 4]
    assert (found.num_same, found.num_moved) == (3, 0)


def test_the_same_rows_differ_in_nothing():
    rows = [("a", "1"), ("b", "2"), ("a", "1")]

    found = diff(rows, rows)

    assert len(found.removed) == len(found.added) == len(found.changed) == 0
    assert (found.num_same, found.num_moved) == (3, 0)


def test_unrelated_rows_are_removed_and_added():
    found = diff([("a", "1")], [("b", "1"), ("c", "1")])

    assert found.removed.tolist() == [0]
    assert found.added.tolist() == [0, 1]


def test_differences_match_a_plain_count():
    draw = random.Random(4)
    for _ in range(50):
        old, new = (
            [
                (draw.choice("abcd"), draw.choice("12"))
                for _ in range(draw.randint(1, 12))
            ]
            for _ in range(2)
        )

        found = diff(old, new)

        same = Counter(old) & Counter(new)
        gone, come = Counter(old) - same, Counter(new) - same
        prompts = Counter(p for p, _ in gone.elements())
        prompts &= Counter(p for p, _ in come.elements())
        assert found.num_same == same.total()
        assert len(found.changed) == prompts.total()
        assert len(found.removed) == gone.total() - prompts.total()
        assert len(found.added) == come.total() - prompts.total()
        for before, after in found.changed.tolist():
            assert old[before][0] == new[after][0]
            assert old[before] != new[after]
