"""The format rewards that projects publish, beside the patterns that they match.

The patterns are those of the published graders, for Python's own engine. Each is the
format rule with its settings: texts that are right but for a piece or two score alike.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import score
from trainer.presets.preset import as_published, load_published

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PIECES = (*TAGS, "\n", " ", "\t", "x", "1 + 2", "```python", "```", "<reasoning>")
OPEN_R1 = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
OPEN_R1_CODE = OPEN_R1.replace(r"<answer>\n.*?", r"<answer>\n.*?```python.*?```.*?")
NESTED = r"^<think>([^<]*(?:<(?!/?think>)[^<]*)*)</think>\n<answer>([\s\S]*?)</answer>$"


def matches(pattern: str, text: str, flags: int = 0) -> bool:
    return re.match(pattern, text, re.DOTALL | flags) is not None


def nano_aha_moment(text: str) -> float:
    found = re.match(NESTED, f"<think>{text}", re.DOTALL)
    if found is None:
        return 0.0
    allowed = re.match(r"^[\d+\-*/().\s]+$", found[2].strip(), re.ASCII)
    return 1.0 if allowed else 0.5


def grpo_zero(text: str) -> float:
    text = f"<think>{text}"
    if matches(r"^<think>.*?</think>\n<answer>.*?</answer>$", text):
        return 1.0
    think = re.search("<think>.*?</think>", text, re.DOTALL)
    answer = re.search("<answer>.*?</answer>", text, re.DOTALL)
    return 0.1 * bool(think) + 0.5 * bool(answer)


def simple_grpo(text: str) -> float:
    is_right = matches(r"^<think>.*?</think>[\n ]*<answer>.*?</answer>$", text)
    think, answer = (
        text.count(f"<{tag}>") + text.count(f"</{tag}>") for tag in ("think", "answer")
    )
    return 1.25 if is_right and think == answer == 2 else -1.0


def simple_grpo_1(text: str) -> float:
    is_right = matches(r"^<think>.*?</think><answer>.*?</answer>$", text)
    return 1.25 if is_right else -1.0


def lm_book(text: str) -> float:
    tags = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
    return sum(0.2 for tag in tags if tag in text)


def open_r1(text: str) -> float:
    return float(matches(OPEN_R1, text, re.MULTILINE))


def open_r1_code(text: str) -> float:
    return float(matches(OPEN_R1_CODE, text))


def settings_of(name: str, rule: str = "format") -> dict[str, Any]:
    """Of the recipe that comes with Cohort, as published where that is a mode."""
    recipe = load_published(name)
    if name == "open-r1":
        recipe = as_published(recipe)
    (found,) = [each for each in recipe.rules if each.name == rule]
    return dict(found.params)


@dataclass(frozen=True)
class Format:
    published: Callable[[str], float]
    settings: dict[str, Any]
    weight: float = 1.0
    kind: str = "format_tags"
    right: tuple[str, ...] = field(default=TAGS)


BROKEN = ("<think>", "\n", "x", "\n", "</think>", "\n", "<answer>", "\n")
CODE = (*BROKEN, "```python", "x", "```", "\n", "</answer>")
FORMATS = {
    "nano-aha-moment": Format(
        nano_aha_moment,
        settings_of("nano-aha-moment"),
        right=("x", "</think>", "\n", "<answer>", "1 + 2", "</answer>"),
    ),
    "GRPO-Zero": Format(
        grpo_zero,
        settings_of("grpo-zero"),
        right=("x", "</think>", "\n", "<answer>", "1 + 2", "</answer>"),
    ),
    "simple-GRPO": Format(simple_grpo, settings_of("simple-grpo"), 1.25),
    "simple-GRPO, first version": Format(
        simple_grpo_1,
        settings_of("simple-grpo")
        | {"separator": "nothing", "repeated_tags": "allowed"},
        1.25,
    ),
    "the LM book": Format(
        lm_book, settings_of("lm-book"), 0.8, "tag_count", ("<reasoning>", *TAGS[2:])
    ),
    "Open R1": Format(
        open_r1, settings_of("open-r1"), right=(*BROKEN, "x", "\n", "</answer>")
    ),
    "Open R1, code": Format(
        open_r1_code,
        settings_of("open-r1")
        | {"mode": "strict", "answer_pattern": "(?s).*```python.*```.*"},
        right=CODE,
    ),
}
CHANGES = st.lists(
    st.tuples(st.integers(0, 20), st.booleans(), st.sampled_from(PIECES)), max_size=4
)


def changed(pieces: tuple[str, ...], changes: list[tuple[int, bool, str]]) -> str:
    """With some pieces put in, others taken out."""
    left = list(pieces)
    for index, is_new, piece in changes:
        if is_new:
            left.insert(index, piece)
        elif index < len(left):
            del left[index]
    return "".join(left)


@pytest.mark.parametrize("name", FORMATS)
@given(changes=CHANGES)
@example(changes=[])
@example(changes=[(1, True, "<think>")])
@example(changes=[(20, True, "\n")])
@example(changes=[(20, True, "\n"), (21, True, "x")])
def test_the_rule_scores_as_the_published_pattern(name, changes):
    made = FORMATS[name]
    text = changed(made.right, changes)

    found = score(made.kind, text, **made.settings)

    assert found is not None
    assert made.weight * found == pytest.approx(made.published(text)), text


@pytest.mark.parametrize("name", FORMATS)
def test_right_completions_score_more_than_wrong_ones(name):
    made = FORMATS[name]

    right, wrong = made.published("".join(made.right)), made.published("x")

    assert right == pytest.approx(made.weight * (0.75 if name == "the LM book" else 1))
    assert wrong < right
