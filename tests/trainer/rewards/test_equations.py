import random

import pytest

from tests.bench.starter.countdown import all_problems, searching_text, solving_text
from tests.trainer.rewards.scores import score, scored


def test_each_true_equation_gives_its_share():
    wrong = [
        (completion, expected, found)
        for completion, expected in [
            ("3+5=8,8-7=1.", 1.0),
            ("3+5=8,8-7=2.", 0.5),
            ("3+5=9", 0.0),
            ("First 3 + 5 = 8. Then 8 * 2 = 16, so 16/4=4.", 1.0),
            ("2*(3+4) = 14 and (1 + 2) / 3 = 1", 1.0),
            ("- 3 + 5 = 8\n- 3 - 5 = -2", 1.0),  # dashes of a list
            ("(3+5=8)", 1.0),
            ("((3+5)=8), **4+4=8**", 1.0),
            ("0.5+0.5=1 and 1.5*2=3.0", 1.0),
            ("10/3=3.33", 0.0),
            ("2**3=8", 1.0),
            ("$3 \\times 5 = 15$, 6 ÷ 2 = 3, 5 − 7 = -2", 1.0),
            ("5/0=1", 0.0),
            ("7 = 3 + 4", 1.0),
        ]
        if (found := score("equations", completion)) != expected
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "completion",
    ["", "8", "7=7", "x=3", "x2+3=5", "f(2)+3=5", "12 apples - 5 = 7", "3+5", "3+5=a"],
)
def test_text_that_computes_nothing_is_not_read_as_equation(completion):
    assert score("equations", completion) == 0.0
    assert score("equations", completion + "; 1+1=2") == 1.0


def test_a_chain_is_one_equation_true_when_all_sides_agree():
    assert score("equations", "3+5=2*4=8") == 1.0
    assert score("equations", "3+5=8=9; 1+1=2") == 0.5


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("3+5=8,8-7=1.", 1.0),  # reached, and said so
        ("3+5=8,8-7=1!", 2 / 3),  # reached, and said otherwise
        ("3+5=8,8+7=15!", 1.0),
        ("3+5=8,8+7=15.", 2 / 3),
        ("3+5=8,8+7=1.", 2 / 3),  # the claim holds for what is written
        ("3+5=8,8-7=1", 1.0),  # nothing is claimed
        ("3+5=8,8+7=15!3+5=8,8-7=1.", 1.0),
    ],
)
def test_a_mark_claims_to_reach_the_target_or_to_miss_it(completion, expected):
    found = score("equations", completion, None, {"t": "1"}, target_column="t")

    assert found == pytest.approx(expected)


@pytest.mark.parametrize("columns", [{}, {"t": None}, {"t": "one"}, {"t": [1]}])
def test_a_row_without_the_target_has_no_score(columns):
    found = scored("equations", "1+1=2.", None, columns, target_column="t")

    assert found.total is None
    assert 'Column "t"' in found.errors["it"]


def test_the_starters_steps_are_true():
    chance = random.Random(0)
    for problem in chance.sample(all_problems(), 40):
        columns = {"target": problem.target}
        for text in (
            solving_text(problem, chance, max_misses=2),
            searching_text(
                problem, chance, hit_rate=0.3, give_up_rate=0.2, max_tries=5
            ),
        ):
            found = score("equations", text, None, columns, target_column="target")
            assert found == 1.0


def test_long_texts_take_linear_time():
    assert score("equations", "1+" * 20_000 + "1=2") == 0.0
    assert score("equations", "(" * 20_000 + "1+1=2") == 1.0
    assert score("equations", "1+1=" * 5_000 + "2") == 1.0
