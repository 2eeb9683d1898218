"""The strings of the published Countdown graders and what they are known to give."""

from __future__ import annotations

import pytest

from trainer.rewards.published import as_published, load_published
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_completion
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


def test_the_bounds_are_the_published_ones():
    assert recipe_bounds(load_published("grpo-zero")) == pytest.approx((0, 1.1))
    assert recipe_bounds(load_published("nano-aha-moment")) == (0, 2)


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r'"gpro".*grpo-zero, nano-aha-moment'):
        load_published("gpro")


def test_a_recipe_without_a_published_mode_is_refused():
    recipe = Recipe(rules=(RuleSpec(name="short", kind="length"),))

    with pytest.raises(ValueError, match="Leave --as-published out"):
        as_published(recipe)
