"""maj@k of a group: against all draws, and as an evaluation counts it."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from dashboard.samples.signals.majorities import majority_shares
from trainer.estimates import majority_places


def share_of_draws(votes: list[str | None], right: list[bool], k: int) -> float:
    """Over all ways to draw k, the chance that the most frequent answer is right."""
    total, num = 0.0, 0
    for draw in combinations(range(len(votes)), k):
        num += 1
        given = [votes[i] for i in draw if votes[i] is not None]
        if not given:
            continue
        most = max(map(given.count, given))
        winners = {vote for vote in given if given.count(vote) == most}
        chances = [
            sum(right[i] for i in draw if votes[i] == winner)
            / sum(votes[i] == winner for i in draw)
            for winner in winners
        ]
        total += sum(chances) / len(winners)
    return total / num


@pytest.mark.parametrize(
    ("votes", "right"),
    [
        ("R", "1"),
        ("a", "0"),
        ("RRab", "1100"),
        ("RRaabb", "110000"),
        ("RRaabbc", "1100000"),
        ("R-a-b-", "100000"),
        ("------", "000000"),
        ("RaabRRcc", "10001100"),
        ("aabb", "1001"),
    ],
)
def test_it_is_the_share_of_all_draws(votes: str, right: str) -> None:
    given = [None if vote == "-" else vote for vote in votes]
    is_right = [one == "1" for one in right]

    found = majority_shares(given, is_right)

    expected = [share_of_draws(given, is_right, k + 1) for k in range(len(votes))]
    assert found == pytest.approx(expected, abs=1e-12)


def test_it_is_what_an_evaluation_gives_over_all_orders() -> None:
    """There the first k count, and of equally frequent answers the first wins."""
    votes = ["R", "R", "a", "a", "b", None]
    total = [0.0] * 6
    for order in permutations(range(6)):
        for k, place in enumerate(majority_places([votes[i] for i in order])):
            total[k] += place is not None and votes[order[place]] == "R"

    found = majority_shares(votes, [vote == "R" for vote in votes])

    assert found == pytest.approx([each / 720 for each in total])


def test_of_one_it_is_the_share_that_is_right() -> None:
    assert majority_shares(["R", "a", "b", None], [True, False, False, False])[
        0
    ] == pytest.approx(0.25)


def test_large_groups_are_exact_too() -> None:
    """Of 64 completions 33 agree: drawn whole, they always win."""
    votes = ["R"] * 33 + [f"wrong {i % 20}" for i in range(31)]

    found = majority_shares(votes, [vote == "R" for vote in votes])

    assert found[63] == pytest.approx(1.0)
    assert found[0] == pytest.approx(33 / 64)
    assert (found[2::2] >= found[:-2:2] - 1e-12).all()
