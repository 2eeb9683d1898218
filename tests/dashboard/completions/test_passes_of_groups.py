"""pass@k over training: of the groups of each step, for every k that they have."""

from itertools import combinations, permutations

import numpy as np
import pytest

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.pass_at_k import (
    majority_shares,
    pass_shares,
    read_passes,
)
from dashboard.completions.signals.records import PASSES
from tests.dashboard.completions.factories import make_evaluation
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import (
    make_composition,
    make_group,
    make_recipe,
)
from trainer.evaluation import majority_places
from trainer.rewards.spec import Recipe

COMPOSITION = make_composition(make_recipe({"answer": 1.0}))
ANSWERS = [f"<answer>{each}</answer>" for each in "abc"]


def count(*groups: tuple[int, int]) -> np.ndarray:
    return np.array(list(groups), PASSES)


def share_of_draws(n: int, c: int, k: int) -> float:
    """Of all ways to draw k of n, those with one of the c right."""
    draws = list(combinations(range(n), k))
    return sum(any(each < c for each in draw) for draw in draws) / len(draws)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_it_is_the_share_of_draws_with_one_that_is_right(n):
    for c in range(n + 1):
        found = pass_shares(count((n, c)), max_k=n)

        expected = [share_of_draws(n, c, k) for k in range(1, n + 1)]
        assert found == pytest.approx(expected)


def test_groups_weigh_alike_and_smaller_than_k_are_left_out():
    found = pass_shares(count((4, 1), (4, 1), (2, 2), (1, 0)), max_k=4)

    assert found == pytest.approx(
        [
            (1 / 4 + 1 / 4 + 1 + 0) / 4,
            (1 / 2 + 1 / 2 + 1) / 3,
            (3 / 4 + 3 / 4) / 2,
            1.0,
        ]
    )


def test_pass_at_k_is_missing_beyond_the_largest_group():
    found = pass_shares(count((2, 1)), max_k=3)

    assert found[:2] == pytest.approx([0.5, 1.0])
    assert np.isnan(found[2])


def test_steps_have_their_shares_and_unscored_ones_none(run):
    right, wrong = make_group([1.0, 0.0]), make_group([0.0, 0.0])
    make_rollup(run, 1, [right, wrong], composition=COMPOSITION)
    make_rollup(run, 2, [make_group([None, None])], composition=COMPOSITION)
    make_rollup(run, 3, [right], composition=COMPOSITION)

    answer = read_passes(run)

    assert answer == {
        "num_older": 0,
        "columns": [
            {"first": 1, "last": 1, "num_groups": 2},
            {"first": 3, "last": 3, "num_groups": 1},
        ],
        "shares": [[0.25, 0.5], [0.5, 1.0]],
        # Of one right and one wrong answer either wins.
        "majorities": [[0.25, 0.5], [0.25, 0.5]],
        "held_out": {},
    }


def test_a_majority_outvotes_the_others(run):
    split = make_group([1.0, 1.0, 0.0, 0.0, 0.0], texts=["", "", *ANSWERS])
    make_rollup(run, 1, [split], composition=COMPOSITION)

    answer = read_passes(run)

    assert answer["majorities"][0] == [0.4]
    assert answer["majorities"][4] == [1.0]


def test_all_right_and_all_wrong_need_no_texts(run):
    groups = [make_group([1.0] * 3, texts=[""] * 3), make_group([0.0] * 3)]
    make_rollup(run, 1, groups, composition=COMPOSITION)

    assert read_passes(run)["majorities"] == [[0.5], [0.5], [0.5]]


def test_groups_with_fewer_completions_count_for_their_ks(run):
    groups = [make_group([1.0, 1.0]), make_group([0.0, None, None])]
    make_rollup(run, 1, groups, composition=COMPOSITION)

    assert read_passes(run)["majorities"] == [[0.5], [1.0]]


def test_maj_at_k_requires_an_answer_rule(run):
    spec = {"rules": [{"name": "answer", "kind": "format_tags"}]}
    composition = make_composition(Recipe.model_validate(spec))
    make_rollup(run, 1, [make_group([1.0, 0.0])], composition=composition)

    answer = read_passes(run)

    assert answer["shares"] == [[0.5], [1.0]]
    assert answer["majorities"] == []
    assert answer["num_older"] == 0


def test_evaluations_are_included(run):
    metrics = {
        "eval/held/pass@1": 0.5,
        "eval/held/pass@4": 0.75,
        "eval/held/pass@4/low": 0.7,
        "eval/held/maj@1": 0.5,
        "eval/held/maj@4": None,
        "eval/held/mean": 0.4,
    }
    for step, attempt, superseded_by in [(10, 2, None), (10, 1, 2)]:
        make_evaluation(
            run,
            step,
            metrics,
            name="held",
            attempt=attempt,
            seq=attempt,
            superseded_by=superseded_by,
        )

    held = {"held": {"pass@1": [[10], [0.5]], "pass@4": [[10], [0.75]]}}
    assert read_passes(run)["held_out"] == held
    assert read_passes(run, first=11)["held_out"] == {}
    assert read_passes(run, last=9)["held_out"] == {}


def test_steps_that_are_older_are_counted(run):
    for step in (1, 2):
        make_rollup(run, step, [make_group([1.0, 0.0])], composition=COMPOSITION)
    make_rollup(run, 3)  # whose groups were not kept
    StepRollup.objects.filter(step=1).update(passes=b"", majorities=b"")

    answer = read_passes(run)

    assert answer["num_older"] == 1
    assert [column["first"] for column in answer["columns"]] == [2]


def test_a_run_without_steps_has_no_column(run):
    assert read_passes(run) == {
        "num_older": 0,
        "columns": [],
        "shares": [],
        "majorities": [],
        "held_out": {},
    }


def test_superseded_steps_do_not_count(run):
    group = make_group([1.0, 0.0])
    make_rollup(run, 1, [group], composition=COMPOSITION)
    make_rollup(run, 2, [group], composition=COMPOSITION, superseded_by=2)

    assert [c["first"] for c in read_passes(run)["columns"]] == [1]


def share_of_votes(votes: list[str | None], right: list[bool], k: int) -> float:
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
def test_it_is_the_share_of_all_draws(votes, right):
    given = [None if vote == "-" else vote for vote in votes]
    is_right = [one == "1" for one in right]

    found = majority_shares(given, is_right)

    expected = [share_of_votes(given, is_right, k + 1) for k in range(len(votes))]
    assert found == pytest.approx(expected, abs=1e-12)


def test_it_is_what_an_evaluation_gives_over_all_orders():
    """There the first k count, and of equally frequent answers the first wins."""
    votes = ["R", "R", "a", "a", "b", None]
    total = [0.0] * 6
    for order in permutations(range(6)):
        for k, place in enumerate(majority_places([votes[i] for i in order])):
            total[k] += place is not None and votes[order[place]] == "R"

    found = majority_shares(votes, [vote == "R" for vote in votes])

    assert found == pytest.approx([each / 720 for each in total])


def test_pass_at_1_is_the_share_of_right_completions():
    assert majority_shares(["R", "a", "b", None], [True, False, False, False])[
        0
    ] == pytest.approx(0.25)


def test_large_groups_are_exact_too():
    """Of 64 completions 33 agree: drawn whole, they always win."""
    votes = ["R"] * 33 + [f"wrong {i % 20}" for i in range(31)]

    found = majority_shares(votes, [vote == "R" for vote in votes])

    assert found[63] == pytest.approx(1.0)
    assert found[0] == pytest.approx(33 / 64)
    assert (found[2::2] >= found[:-2:2] - 1e-12).all()
