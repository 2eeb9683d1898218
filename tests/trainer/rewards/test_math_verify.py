import threading

import pytest

from tests.environment import run_threads
from tests.trainer.rewards.scores import score, scored
from trainer.rewards.judge import JudgeFailed, ask


def grade(completion: str, answer: str | None, **params) -> float | None:
    return score("math_verify", completion, answer, source="whole", **params)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", "1/2", 1.0),
        ("The answer is 0.5.", r"\frac{1}{2}", 1.0),
        ("$x^2+2x+1$", "(x+1)^2", 1.0),
        ("$x^2+1$", "(x+1)^2", 0.0),
        ("it is 41", "42", 0.0),
        ("no idea", "42", 0.0),
        ("", "42", 0.0),
    ],
)
def test_answers_are_compared_as_mathematics(completion, answer, expected):
    assert grade(completion, answer) == expected


def test_a_bare_formula_inside_the_tags_is_read_whole():
    completion = "<answer>1+x^2</answer>"

    assert score("math_verify", completion, "x^2+1") == 1.0
    assert score("math_verify", completion, "1") == 0.0


@pytest.mark.parametrize("answer", [None, "", "the second one", "a town in Peru"])
def test_an_answer_column_with_a_sentence_gives_no_score(answer):
    result = scored("math_verify", "<answer>42</answer>", answer)

    assert result.total is None
    assert result.errors["it"]


def test_it_works_outside_the_main_thread():
    found: list[float | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(grade("it is 42", "42")))
        for _ in range(4)
    ]

    run_threads(threads)

    assert found == [1.0] * 4


def test_an_answer_that_takes_too_long_gets_no_score_and_the_next_one_does():
    hanging = r"$\frac{9^{9^{9^{9}}}}{7}!$"

    result = scored("math_verify", hanging, "42", source="whole", timeout_seconds=0.3)

    assert result.total in {None, 0.0}
    assert grade("it is 42", "42") == 1.0


def test_the_judge_is_ended_when_its_time_is_up():
    question = {"reference": "42", "text": "42", "is_bare": True}
    ask("math_verify", question, timeout_seconds=60)

    with pytest.raises(JudgeFailed, match=r"exceeded 1e-06 s"):
        ask("math_verify", question, timeout_seconds=1e-6)

    assert ask("math_verify", question, timeout_seconds=60)["is_right"]


def test_only_the_end_of_a_very_long_completion_is_read():
    assert grade("so " * 40_000 + "the answer is 42", "42") == 1.0


def boxed(written: str, answer: str) -> float | None:
    return score("math_verify", rf"So \boxed{{{written}}}", answer, source="boxed")


EQUAL = [
    # Words that stand in a formula, and units behind one.
    (r"12\pi \text{ square inches}", r"12\pi"),
    (r"12\pi", "12\\pi square inches"),
    (r"3\sqrt{2}\text{ meters}", r"3\sqrt{2}"),
    (r"\frac{270}{7}", r"\frac{270}7\text{ degrees}"),
    (r"\begin{bmatrix}2 & 1 \\ 9 & 3\end{bmatrix}",
     r"\left[\begin{array}{cc}2 & 1 \\ 9 & 3\end{array}\right]"),
    (r"24\text{ cm}^2", "24"),
    ("24 cm²", "24"),
    ("90°", r"90^\circ"),
    (r"\text{3 apples}", "3"),
    ("x=5", "5"),
    ("3个", "3"),
    # Money.
    ("18.90", r"\$18.90"),
    (r"\$5.40", "5.40"),
    ("32348", r"\$32,\!348"),
    ("€12", "12"),
    # Words alone, dates and times of day.
    ("True", "True"),
    ("yes", r"\text{Yes}"),
    (r"\text{Paris}", "Paris"),
    ("Paris.", r"\text{Paris}"),
    ("odd", r"\text{odd}"),
    ("no solution", r"\text{No solution}"),
    ("巴黎", "巴黎"),
    (r"\text{25 June}", "June 25"),
    ("6:00 PM", r"6:00\text{ p.m.}"),
    # Plain notation.
    ("sqrt(2)", r"\sqrt{2}"),
    ("√(2(1+2))", r"\sqrt{6}"),
    ("3√12", r"3\sqrt{12}"),
    (r"4\sqrt(2)", r"4\sqrt{2}"),
    ("2*pi", r"2\pi"),
    ("(3, π/2)", r"(3, \frac{\pi}{2})"),
    ("**12**", "12"),
    ("2**3", "8"),
    ("(−∞, 3)", r"(-\infty,3)"),
    ("[1,2]∪[3,4]", r"[1,2]\cup[3,4]"),
    ("１２", "12"),
    ("2½", "2.5"),
    ("10⁻⁵", "10^{-5}"),
    ("sin(x)", r"\sin x"),
    ("1.5e5", "150000"),
    ("1.5e-1", "0.15"),
    ("2e-1", "-1+2e"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    (r"0.1\overline{6}", r"\frac{1}{6}"),
    ("0.(3)", r"\frac13"),
    ("1<x<3", "(1,3)"),
    ("x ≤ 3", r"x\le 3"),
    (r"28 \%", r"28\%"),
    # Numbers that are the same.
    ("2^{-98}", r"\frac{1}{2^{98}}"),
    (r"1+\frac{1}{e}", r"1+\frac{1}{\mathrm{e}}"),
    ("0.333333", "1/3"),
    ("52_{9}", "52_9"),
    ("2,1,1", "1,1,2"),
    (r"\{1,2\}", r"\{1,1,2\}"),
    ("x+2y=3", "2x+4y=6"),
    ("5=x", "x=5"),
    # Sentences.
    ("The answer is 12.", "12"),
    ("So Tom has 3 + 4 = 7 apples.", "7"),
    ("It is 42 (see the second page, line 3)", "42"),
    ("Die Fläche ist 5", "5"),
    ("答案是12", "12"),
    ("x = 1 or x = 2", "1, 2"),
]  # fmt: skip
DIFFERENT = [
    ("9", r"\begin{pmatrix} 2 \\ 9 \end{pmatrix}"),
    ("3", r"\begin{array}{cc} 2 & 1 \\ 9 & 3\end{array}"),
    (r"\begin{pmatrix} 2 \\ 8 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 9 \end{pmatrix}"),
    ("12", r"12\pi \text{ square inches}"),
    ("12", "12\\pi square inches"),
    ("3", r"3\sqrt{2}\text{ meters}"),
    ("8", r"12 \text{ inches by } 8 \text{ inches}"),
    ("8", "12 inches by 8 inches"),
    ("348", r"\$32,\!348"),
    ("False", "True"),
    ("No", "Yes"),
    ("Lyon", "Paris"),
    ("上海", "巴黎"),
    ("12", "Paris"),
    ("Paris", "12"),
    ("25", r"\text{June 25}"),
    ("July 25", r"\text{June 25}"),
    ("June 12", "12"),
    (r"6:00\text{ a.m.}", r"6:00\text{ p.m.}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"(1, 2^{-99})", "(1, 2^{-98})"),
    (r"x=2^{-99}", "x=2^{-98}"),
    ("x^2+2^{-99}", "x^2+2^{-98}"),
    ("0.0000002", "0.0000001"),
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),
    ("4", r"4\sqrt(2)"),
    ("2", r"2\sqrt[3]"),
    ("52_8", "52_9"),
    ("52", "52_9"),
    ("47", "52_9"),
    ("1,2", "1,1,2"),
    ("1,2,2", "1,1,2"),
    ("2", "2,2"),
    ("1<x<4", "(1,3)"),
    ("1<=x<3", "(1,3)"),
    (r"0.\overline{4}", r"\frac{1}{3}"),
    ("0.2", "2e-1"),
    ("0.33", "1/3"),
    ("12 apples or 13 apples", "13"),
    ("either 12 or 13 inches", "13"),
    ("$12$ or $13$", "13"),
    ("The answer is not 12", "12"),
    ("12 is wrong", "12"),
    (r"\text{not }12", "12"),
    ("2(13", "13"),
]


@pytest.mark.parametrize(("written", "answer"), EQUAL)
def test_an_answer_is_read_whole_in_plain_notation_and_with_words(written, answer):
    assert boxed(written, answer) == 1.0


@pytest.mark.parametrize(("written", "answer"), DIFFERENT)
def test_an_answer_that_is_a_part_of_the_rows_or_close_to_it_is_wrong(written, answer):
    assert boxed(written, answer) == 0.0


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so $12\pi$.", r"12\pi \text{ square inches}", 1.0),
        (r"so $4\sqrt(2)$", "4", 0.0),
        (r"so $1 - \frac{1}{\mathrm{e}}$", r"1-\frac{1}{e}", 1.0),
        (r"so $1 + \frac{1}{\mathrm{e}}$", r"1-\frac{1}{e}", 0.0),
        (r"so $\frac{1}{2^{99}}$", r"\frac{1}{2^{98}}", 0.0),
        (r"It is \boxed{Paris}.", r"\text{Paris}", 1.0),
        (r"It is \boxed{\text{Lyon}}.", "Paris", 0.0),
        ("It is Paris.", "Paris", None),
    ],
)
def test_a_whole_completion_is_compared_by_the_same_checks(
    completion, answer, expected
):
    assert grade(completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"$\boxed{\frac{1}{2^{99}}}$", r"$\frac{1}{2^{98}}$"),
        (r"$\boxed{52_8}$", "$52_9$"),
        (r"$\boxed{1,2}$", "$1,1,2$"),
    ],
)
def test_the_published_grader_keeps_its_own_equality(completion, answer):
    assert grade(completion, answer, mode="as_published") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        *("(" + "a" * 3_900, "sqrt(" * 790, "9" * 3_990, "**" * 1_990, " " * 3_990),
        *(rf"0.\overline{{{'1' * 4_400}}}", f"0.({'1' * 4_400})", f"{'1' * 4_400}.(1)"),
    ],
)
def test_a_hostile_text_is_read_at_once(text):
    found = scored("math_verify", rf"\boxed{{{text}}}", "42", source="boxed")

    assert found.total == 0.0
