"""Prompts are drawn by their pass rates: weights, draws, gate and evidence."""

import itertools
import json
import math

import numpy as np
import pytest

from trainer.config import CurriculumConfig
from trainer.curriculum import (
    Beliefs,
    draw,
    draw_keys,
    read_pass_rates,
    right_of,
    signal_chance,
    weights_of,
)
from trainer.rewards.scoring import Score
from trainer.rewards.spec import Recipe
from trainer.seeding import derive

T_19 = 2.093  # of a 95 % interval over 20 values


def beliefs_of(*visits, num_rows=6, decay=0.5):
    """Each visit: step, then by row the right completions of 4."""
    beliefs = Beliefs.about(range(num_rows))
    for step, right in visits:
        beliefs.add_visits(
            np.array(list(right)),
            right=np.array(list(right.values()), float),
            scored=np.full(len(right), 4),
            step=step,
            decay=decay,
        )
    return beliefs


def rows_of(beliefs, step, num=2, seed=0, **settings):
    config = CurriculumConfig(**{"kind": "pools"} | settings)
    seed = derive(seed, step)
    drawn = draw(
        beliefs, config, prompts_per_step=num, group_size=4, seed=seed, step=step
    )
    return drawn.places


def inclusion_of_sets(weights, num):
    """Exact chances of sets by successive draws, by enumeration of all orders."""
    chances = {}
    for order in itertools.permutations(range(len(weights)), num):
        chance, left = 1.0, sum(weights)
        for place in order:
            chance *= weights[place] / left
            left -= weights[place]
        key = frozenset(order)
        chances[key] = chances.get(key, 0.0) + chance
    return chances


def test_draws_have_the_chances_of_successive_sampling():
    """10⁵ draws of 2 of 5, by chi-square with 9 degrees of freedom, p = 0.001."""
    weights = (1.0, 0.2, 0.05, 2.0, 0.7)
    keys = draw_keys(np.tile(weights, 100_000), seed=1).reshape(-1, 5)
    drawn = np.sort(np.argsort(keys)[:, -2:])
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)

    expected = inclusion_of_sets(weights, 2)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(pairs) == len(expected) == 10
    distance = sum(
        (count - 100_000 * expected[frozenset(pair)]) ** 2
        / (100_000 * expected[frozenset(pair)])
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
    )
    assert distance < 27.88


def test_a_draw_takes_the_largest_keys():
    beliefs = beliefs_of((1, {0: 2, 1: 0, 2: 4}))
    config = CurriculumConfig(kind="pools")
    seed = derive(3, 7)
    weights = weights_of(beliefs, config, group_size=4, seed=seed)

    assert weights.tolist() == [1.0, 0.2, 0.2, 1.0, 1.0, 1.0]
    keys = draw_keys(weights, seed=seed)
    assert rows_of(beliefs, 7, seed=3) == np.argsort(-keys).tolist()


def test_equal_weights_draw_every_prompt_as_often():
    beliefs = Beliefs.about(range(20))
    counts = np.zeros(20)
    for step in range(1, 2_001):
        counts[rows_of(beliefs, step, num=4)[:4]] += 1

    assert ((counts - 400) ** 2 / 400).sum() / 0.8 < 43.82  # df 19, p = 0.001


def test_the_order_holds_every_prompt_once_and_follows_from_seed_and_step():
    beliefs = beliefs_of((1, {0: 2, 1: 0}))

    assert sorted(rows_of(beliefs, 2)) == list(range(6))
    assert rows_of(beliefs, 2) == rows_of(beliefs, 2)
    assert len({tuple(rows_of(beliefs, step)) for step in range(2, 12)}) > 5


def test_evidence_decays_toward_the_prior():
    beliefs = beliefs_of((1, {0: 4}), (2, {0: 1, 2: 0}))

    # α 1 → 0.5 + 0.5 + 4 = 5 → 2.5 + 0.5 + 1; β 1 → 1 → 0.5 + 0.5 + 3
    assert (beliefs.alpha[0], beliefs.beta[0]) == (4.0, 4.0)
    assert (beliefs.alpha[2], beliefs.beta[2]) == (1.0, 5.0)
    assert beliefs.seen.tolist() == [True, False, True, False, False, False]
    assert beliefs.last_step.tolist() == [2, 0, 2, 0, 0, 0]


def test_a_group_without_scores_says_nothing():
    beliefs = Beliefs.about([3, 5])
    beliefs.add_visits(
        np.array([5]), right=np.zeros(1), scored=np.zeros(1, int), step=4, decay=0.5
    )

    assert not beliefs.seen.any()
    assert beliefs.last_step.tolist() == [0, 0]


def test_the_chance_of_a_signal_is_the_mean_over_the_belief():
    ps = (np.arange(100_000) + 0.5) / 100_000
    for alpha, beta in ((1.0, 1.0), (5.0, 2.0)):
        density = ps ** (alpha - 1) * (1 - ps) ** (beta - 1)
        slow = np.average(1 - ps**4 - (1 - ps) ** 4, weights=density)
        chance = signal_chance(np.array([alpha]), np.array([beta]), group_size=4)
        assert chance[0] == pytest.approx(slow, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # α, β of row 0: 3, 3; of row 1: 1, 5; of row 2: 5, 1. Row 3 is unseen.
        ({"kind": "pools", "unseen_weight": 0.5}, [1.0, 0.2, 0.2, 0.5]),
        (
            {"kind": "learnability", "score": "variance"},
            [4 * 9 / 42, 20 / 42, 20 / 42, 1.0],
        ),
        (
            {"kind": "learnability", "floor_weight": 0.6},
            # row 1: 1 − 1·2·3·4 / (6·7·8·9) − 5·6·7·8 / (6·7·8·9)
            [1 - 2 * 360 / 3024, 0.6, 0.6, 1.0],
        ),
    ],
)
def test_weights_by_hand(settings, expected):
    beliefs = beliefs_of((1, {0: 2, 1: 0, 2: 4}), num_rows=4)
    config = CurriculumConfig(**settings)

    weights = weights_of(beliefs, config, group_size=4, seed=0)

    assert weights == pytest.approx(expected)


def test_a_target_prefers_prompts_whose_pass_rate_is_near():
    beliefs = beliefs_of(*((step, {0: 2, 1: 0, 2: 4}) for step in range(1, 9)))
    config = CurriculumConfig(kind="target", target=1.0, floor_weight=1e-6)
    weights = [
        weights_of(beliefs, config, group_size=4, seed=seed)[:3] for seed in range(200)
    ]

    hard, medium, easy = np.mean(weights, axis=0)[[1, 0, 2]]
    assert easy > 10 * medium > 10 * hard


def test_a_prompt_that_is_always_right_is_out_until_its_recheck():
    gate = {"drop_after": 2, "recheck_every": 5}
    once = beliefs_of((1, {0: 4}))
    assert 0 in rows_of(once, 2, **gate)

    twice = beliefs_of((1, {0: 4}), (2, {0: 4}))
    assert twice.due_steps(CurriculumConfig(**gate)).tolist() == [7, 0, 0, 0, 0, 0]
    assert 0 not in rows_of(twice, 6, **gate)
    assert 0 in rows_of(twice, 7, **gate)
    assert 0 in rows_of(twice, 6)  # without a gate

    again = beliefs_of((1, {0: 4}), (2, {0: 4}), (9, {0: 4}))
    assert again.due_steps(CurriculumConfig(**gate))[0] == 14
    mixed = beliefs_of((1, {0: 4}), (2, {0: 4}), (9, {0: 3}))
    assert mixed.due_steps(CurriculumConfig(**gate))[0] == 0
    turned = beliefs_of((1, {0: 4}), (2, {0: 0}))  # as wrong as it was right
    assert turned.due_steps(CurriculumConfig(**gate))[0] == 0


def test_prompts_that_are_out_fill_a_step_that_lacks_others():
    gate = {"drop_after": 1, "recheck_every": 10}
    beliefs = beliefs_of((1, {0: 4, 1: 0}), (2, {2: 4, 3: 4, 4: 4}))

    drawn = rows_of(beliefs, 3, num=3, **gate)

    assert len(drawn) == 3
    assert drawn[0] == 5
    assert set(drawn[1:]) == {0, 1}  # which are due first


def test_what_uniform_order_would_have_given_is_estimated_without_bias():
    """Half of the prompts have a signal, and a draw takes mostly those."""
    right = {row: 2 if row % 2 else 4 for row in range(30)}
    beliefs = beliefs_of((1, right), num_rows=30)
    config = CurriculumConfig(kind="pools")
    estimates, shares = [], []
    for step in range(2, 1_002):
        drawn = draw(
            beliefs, config, prompts_per_step=6, group_size=4, seed=step, step=step
        )
        signals = {row: row % 2 == 1 for row in drawn.rows}
        metrics = drawn.metrics(signals)
        estimates.append(metrics["curriculum/uniform_signal"])
        shares.append(sum(signals.values()) / 6)
        assert metrics["curriculum/normal"] == shares[-1]

    half = 1.96 * np.std(estimates) / math.sqrt(1_000)
    assert np.mean(shares) > 0.75
    assert half < 0.02
    assert np.mean(estimates) == pytest.approx(0.5, abs=2 * half)


def test_prompts_that_are_out_count_as_without_signal():
    beliefs = beliefs_of((1, {0: 4, 1: 4, 2: 4}))
    config = CurriculumConfig(kind="pools", drop_after=1)
    drawn = draw(beliefs, config, prompts_per_step=3, group_size=4, seed=0, step=2)

    metrics = drawn.metrics(dict.fromkeys((3, 4, 5), True))

    assert metrics["curriculum/num_out"] == 3
    # each of the other three was sure to be drawn, and has a signal
    assert metrics["curriculum/uniform_signal"] == pytest.approx(0.5)


ANSWER = {"name": "answer", "kind": "exact_answer"}
SHORT = {"name": "short", "kind": "length", "params": {"maximum": 6}}


def test_right_is_counted_by_answers_and_else_by_the_reward_between_its_bounds():
    answers = Recipe.model_validate({"rules": [ANSWER, SHORT]})
    scores = [
        Score(1.5, {"answer": 1.0, "short": 0.5}, {}),
        Score(1.0, {"answer": 0.0, "short": 1.0}, {}),
        Score(None, {"answer": None, "short": None}, {}),
    ]
    assert right_of(scores, answers, step=1) == (1.0, 2)

    graded = Recipe.model_validate({"rules": [{**SHORT, "weight": 2.0}]})
    scores = [Score(total, {"short": total / 2}, {}) for total in (0.5, 2.0, 1.0)]
    assert right_of(scores, graded, step=1) == (pytest.approx(1.75), 3)


def test_a_run_begins_with_the_pass_rates_of_a_file(tmp_path):
    path = tmp_path / "rates.jsonl"
    lines = [{"row": 4, "num_right": 3, "num_scored": 8}, {"row": 99}]
    lines[1] |= {"num_right": 0, "num_scored": 8}  # held out here
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    beliefs = Beliefs.about([1, 4])

    read_pass_rates(path, beliefs)

    assert (beliefs.alpha.tolist(), beliefs.beta.tolist()) == ([1, 4], [1, 6])
    assert beliefs.seen.tolist() == [False, True]
    assert beliefs.last_step.tolist() == [0, 0]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"row": 1, "num_right": 9, "num_scored": 8}',
        '{"row": 1, "num_right": -1, "num_scored": 8}',
        '{"row": 1.5, "num_right": 1, "num_scored": 8}',
        '{"row": 1, "num_right": NaN, "num_scored": 8}',
        '{"row": 1, "num_right": 1, "num_scored": 1e999}',
        f'{{"row": 1, "num_right": 1, "num_scored": {10**400}}}',
        '{"row": 1, "num_right": "a", "num_scored": 8}',
    ],
)
def test_a_line_that_is_no_pass_rate_is_named(line, tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text('{"row": 0, "num_right": 0, "num_scored": 8}\n' + line)

    with pytest.raises(ValueError, match="line 2"):
        read_pass_rates(path, Beliefs.about([0, 1]))


def test_a_file_about_no_prompt_of_the_run_is_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    path.write_text('{"row": 7, "num_right": 1, "num_scored": 8}\n')

    with pytest.raises(ValueError, match=r"rates.jsonl.*start_from"):
        read_pass_rates(path, Beliefs.about([0, 1]))
    path.write_text("")  # of a run that was stopped before its first step
    read_pass_rates(path, Beliefs.about([0, 1]))


def test_beliefs_of_other_prompts_are_not_taken_over(tmp_path):
    beliefs = beliefs_of((1, {0: 4}), (2, {0: 1, 2: 0}))
    beliefs.save(tmp_path / "saved.npz", digest="abc")

    loaded = Beliefs.load(tmp_path / "saved.npz", digest="abc")

    assert loaded is not None
    for name, values in vars(beliefs).items():
        assert np.array_equal(getattr(loaded, name), values)
    assert Beliefs.load(tmp_path / "saved.npz", digest="abd") is None
    assert Beliefs.load(tmp_path / "none.npz", digest="abc") is None


def steps_to_learn(kind, seed):
    """A learner whose skill grows with the groups that have a signal.

    300 prompts, 10 a step in groups of 8; done once it solves 90 % of them.
    """
    draws = np.random.Generator(np.random.PCG64(derive(seed, "learner")))
    difficulty = draws.uniform(-3, 6, 300)
    beliefs, skill = Beliefs.about(range(300)), 0.0
    config = CurriculumConfig(kind=kind)
    for step in range(1, 2_000):
        rates = 1 / (1 + np.exp(difficulty - skill))
        if rates.mean() > 0.9:
            return step
        drawn = draw(
            beliefs,
            config,
            prompts_per_step=10,
            group_size=8,
            seed=derive(seed, step),
            step=step,
        )
        places = drawn.places[:10]
        right = draws.binomial(8, rates[places])
        skill += 0.02 * ((right > 0) & (right < 8)).sum()
        beliefs.add_visits(
            np.array(places),
            right=right.astype(float),
            scored=np.full(10, 8),
            step=step,
            decay=0.5,
        )
    return math.inf


@pytest.mark.parametrize("kind", ["pools", "learnability", "target"])
def test_a_learner_gets_there_in_fewer_steps_than_in_uniform_order(kind):
    saved = [
        1 - steps_to_learn(kind, seed) / steps_to_learn("off", seed)
        for seed in range(20)
    ]

    half = T_19 * np.std(saved, ddof=1) / math.sqrt(20)
    assert np.mean(saved) - half > 0
