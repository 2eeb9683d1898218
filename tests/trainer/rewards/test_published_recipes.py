"""Strings of the published graders and what they are known to give."""

import pytest

from tests.trainer.rewards.scores import score_completion
from trainer.presets.preset import as_published, load_published
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe, RuleSpec, recipe_bounds

COLUMNS = {"numbers": [1, 2, 3], "target": 9}
THINKING = " 1 and 2 make 3</think>\n"
RIGHT = f"{THINKING}<answer>(1+2)*3</answer>"
WRONG = f"{THINKING}<answer>1+2+3</answer>"
NO_THINKING = "<answer>(1+2)*3</answer>"
POWER = f"{THINKING}<answer>3**(2)*1</answer>"


def total(recipe: Recipe, completion: str) -> float | None:
    return score_completion(recipe, Sample("", completion, None, COLUMNS)).total


@pytest.mark.parametrize("change", [as_published, lambda recipe: recipe])
@pytest.mark.parametrize(
    ("name", "completion", "expected"),
    [
        ("grpo-zero", RIGHT, 1.1),
        ("nano-aha-moment", RIGHT, 2.0),
        ("grpo-zero", WRONG, 0.1),
        ("nano-aha-moment", WRONG, 1.0),
        ("grpo-zero", NO_THINKING, 1.05),
        ("nano-aha-moment", NO_THINKING, 1.0),
        ("grpo-zero", RIGHT.replace("</think>\n", "</think>"), 1.06),
        ("nano-aha-moment", f"{THINKING}<answer>nine</answer>", 0.5),
        ("nano-aha-moment", f"so <think>{RIGHT}", 1.0),
        ("grpo-zero", f"so <think>{RIGHT}", 1.1),
        ("grpo-zero", f"{RIGHT}\n", 1.1),
        ("nano-aha-moment", f"{RIGHT} ", 1.0),
    ],
)
def test_published_totals(change, name, completion, expected):
    recipe = change(load_published(name))

    assert total(recipe, completion) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "strict", "published"),
    [("grpo-zero", 0.1, 1.1), ("nano-aha-moment", 1.0, 2.0)],
)
def test_a_power_passes_only_as_published(name, strict, published):
    recipe = load_published(name)

    # Both format rules let the characters pass: 3**(2)*1 is made of allowed ones.
    assert total(recipe, POWER) == pytest.approx(strict)
    assert total(as_published(recipe), POWER) == pytest.approx(published)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("grpo-zero", (0, 1.1)),
        ("lm-book", (0, 2.8)),
        ("nano-aha-moment", (0, 2)),
        ("open-r1", (0, 3)),
        ("simple-grpo", (-2, 2.25)),
        ("verl", (0, 1)),
    ],
)
def test_the_bounds_are_the_published_ones(name, bounds):
    assert recipe_bounds(load_published(name)) == pytest.approx(bounds)
    assert recipe_bounds(as_published(load_published(name))) == pytest.approx(bounds)


def graded(name: str, completion: str, answer: str, *, published: bool) -> float | None:
    recipe = load_published(name)
    if published:
        recipe = as_published(recipe)
    return score_completion(recipe, Sample("", completion, answer)).total


@pytest.mark.parametrize(
    ("completion", "answer", "strict", "published"),
    [
        ("<think>so</think><answer>7</answer>", "7", 2.25, 2.25),
        ("<think>so</think> \n\n<answer>7</answer>\n", "7", 2.25, 2.25),
        ("<think>so</think><answer>8</answer>", "7", 0.25, 0.25),
        ("it is 7", "7", 0.0, 0.0),
        ("it is 8", "7", -2.0, -2.0),
        ("no idea", "7", -2.0, -2.0),
        ("<think>so</think>\t<answer>7</answer>", "7", 0.0, 0.0),
        ("<think><think>so</think><answer>7</answer>", "7", 0.0, 0.0),
        ("x = -7", "7", -2.0, 0.0),  # published: the sign is not seen
        ("x = -7", "-7", 0.0, -2.0),
        ("it is 1,000", "1000", 0.0, -2.0),  # published: reads 000
        ("it is 1,000", "0", -2.0, 0.0),
        ("it is 6/2", "3", 0.0, 0.0),
        ("it is 3/0", "3", -2.0, -2.0),
        ("7 and then 8", "7", -2.0, -2.0),  # the last number counts
    ],
)
def test_simple_grpos_totals(completion, answer, strict, published):
    assert graded("simple-grpo", completion, answer, published=False) == strict
    assert graded("simple-grpo", completion, answer, published=True) == published


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<reasoning>so</reasoning><answer>72</answer>", 2.8),
        ("<reasoning>so</reasoning><answer>72 eggs</answer>", 2.3),
        ("<reasoning>so</reasoning><answer>71</answer>", 0.8),
        ("</answer><answer>", 0.4),
        ("<answer>71</answer> or <answer>72</answer>", 2.4),
        ("<answer>...</answer>", 0.4),
        ("72", 0.0),
    ],
)
def test_the_lm_books_totals(completion, expected, published):
    total = graded("lm-book", completion, "72", published=published)

    assert total == pytest.approx(expected, abs=1e-12)


OPEN_R1 = "<think>\nso\n</think>\n<answer>\n$\\boxed{%s}$\n</answer>"


@pytest.mark.parametrize(
    ("completion", "strict", "published"),
    [
        (OPEN_R1 % "72", 3.0, 3.0),
        (OPEN_R1 % "71", 2.0, 2.0),
        (OPEN_R1 % "72" + "\nbye", 2.0, 3.0),  # published: lines may follow
        (OPEN_R1 % "72" + " bye", 2.0, 2.0),
        ("so it is $\\boxed{72}$", 1.0, 1.0),
        ("<think>so</think>\n<answer>$72$</answer>", 1.0, 1.0),
        ("so it is 72", 1.0, 0.0),  # published: LaTeX alone is read
        ("no idea", 0.0, 0.0),
    ],
)
def test_open_r1s_totals(completion, strict, published):
    assert graded("open-r1", completion, "$72$", published=False) == strict
    assert graded("open-r1", completion, "$72$", published=True) == published


def test_open_r1_gives_no_accuracy_where_the_rows_answer_is_unreadable():
    for recipe in (load_published("open-r1"), as_published(load_published("open-r1"))):
        score = score_completion(recipe, Sample("", OPEN_R1 % "72", ""))

        assert score.rules["accuracy"] is None
        assert score.total == 2.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [("7", "7"), ("7.50", "7.5"), ("6/2", "3"), ("000", "1000"), ("1000", "1,000")],
)
def test_simple_grpos_numbers_agree_with_the_library_it_asks(text, answer):
    from math_verify import ExprExtractionConfig, parse, verify

    read = [
        parse(it, extraction_config=[ExprExtractionConfig()]) for it in (text, answer)
    ]

    assert graded("simple-grpo", text, answer, published=True) == (
        0.0 if verify(*read) else -2.0
    )


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match='"gpro"'):
        load_published("gpro")


def test_a_recipe_without_a_published_mode_is_refused():
    recipe = Recipe(rules=(RuleSpec(name="short", kind="length"),))

    with pytest.raises(ValueError, match="--as-published"):
        as_published(recipe)
