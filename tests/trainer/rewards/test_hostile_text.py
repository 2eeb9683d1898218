"""Whatever a model writes is text to be judged: nothing raises, hangs or runs it."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import AT_ONCE, BY_THEMSELVES, recipe_of
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import recipe_bounds

PARAMS = {kind: rule.example_pass.params for kind, rule in RULES.items()}
PIECES = st.sampled_from(
    [
        "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "{", "####",
        "(", ")", "+", "-", "*", "/", "**", "1", "0", "999999999999", ".", ",", "%",
        "\\frac", "$", "\n", " ", "e9", "import os", "__class__", "lambda:0", "\x00",
        "\ud800", "\u202e", "٣", "𝟛", "½", "nan", "inf", "é",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
IN_PROCESS = [
    kind for kind in BY_THEMSELVES if kind not in {"math_verify", "reasoning_gym"}
]


def judged(kind: str, sample: Sample, **params) -> None:
    recipe = recipe_of(kind, **(PARAMS[kind] | params))
    low, high = recipe_bounds(recipe)

    # Rules that compare need others; the rest judge each by itself.
    score = score_all(recipe, [sample, replace(sample, completion="so 42")])[0]

    assert score.total is None or low <= score.total <= high
    assert (score.total is None) == bool(score.errors)


@pytest.mark.parametrize("kind", IN_PROCESS)
@given(completion=TEXTS, answer=st.none() | TEXTS)
def test_any_completion_is_scored(kind, completion, answer):
    columns = RULES[kind].example_pass.sample.columns

    judged(kind, Sample("p", completion, answer, columns))


@pytest.mark.parametrize("kind", ["math_verify", "reasoning_gym"])
@given(completion=TEXTS)
def test_any_completion_is_scored_by_the_libraries(kind, completion):
    example = RULES[kind].example_pass.sample

    judged(kind, Sample("p", f"<answer>{completion}", example.answer, example.columns))
    judged(
        kind,
        Sample("p", completion, example.answer, example.columns),
        source="whole",
        timeout_seconds=2,
    )


@given(completion=TEXTS, mode=st.sampled_from(["grpo_zero", "nano_aha_moment"]))
def test_any_completion_is_scored_as_published(completion, mode):
    columns = {"numbers": [1, 2, 3], "target": 9}

    judged(
        "countdown",
        Sample("p", f"<answer>{completion}</answer>", None, columns),
        mode="as_published",
        published_by=mode,
    )


LONG = {
    "open parentheses": "<answer>" + "(" * 100_000 + "</answer>",
    "balanced parentheses": "<answer>"
    + "(" * 50_000
    + "1"
    + ")" * 50_000
    + "</answer>",
    "a huge number": "<answer>" + "9" * 100_000 + "</answer>",
    "a huge power": "<answer>" + "9**" * 30_000 + "9</answer>",
    "signs": "<answer>" + "-" * 100_000 + "1</answer>",
    "open tags": "<think>" * 15_000,
    "tags": "<think></think><answer></answer>" * 3_000,
    "boxes": "\\boxed{" * 14_000,
    "fractions": "\\frac{1}{" * 10_000,
    "spaces": "<answer>" + " " * 100_000 + "</answer>",
    "commas": "1," * 50_000,
    "dollars": "$" * 100_000,
    "digits and spaces": "1 " * 50_000,
    "nulls": "\x00" * 100_000,
    "letters to choose from": "A " * 50_000,
    "boxed letters": "\\boxed{" + "(A) " * 25_000 + "}",
    "bullets": "\n-" * 50_000,
    "fences": "```" * 33_000,
    "JSON, open": "[" * 100_000,
    "JSON, nested": "[" * 50_000 + "]" * 50_000,
    "JSON, an array": "[" + "1," * 49_999 + "1]",
    "JSON, objects": "[" + "{}," * 33_000 + "{}]",
    "JSON, a number": "1" * 100_000,
    "elements": "<a>" * 33_000,
    "comments": "<!--" * 25_000,
    "two scripts": "二a" * 50_000,
    "commands": "\\a" * 50_000,
}

# Brackets, tags, numbers, a power: where each way of parsing went wrong, if it did.
SOME = {
    *("open parentheses", "a huge power", "open tags", "boxes", "spaces"),
    *("commas", "letters to choose from", "JSON, nested"),
}
long_texts = pytest.mark.parametrize(
    "names",
    [SOME, pytest.param(LONG.keys() - SOME, marks=pytest.mark.slow)],
    ids=["some", "others"],
)

PUBLISHED = [
    ("numeric_answer", {"wrong_score": -1.0}),
    ("marker_answer", {"published_by": "verl", "left_out": ",$"}),
    ("marker_answer", {"published_by": "lm_book", "missing_score": -1.0}),
    ("format_tags", {"line_breaks": "inside", "mismatch_score": -1.0}),
]


@pytest.mark.parametrize(("kind", "params"), PUBLISHED)
@given(completion=TEXTS, answer=TEXTS)
def test_any_completion_is_scored_by_the_other_published_graders(
    kind, params, completion, answer
):
    judged(kind, Sample("p", completion, answer), mode="as_published", **params)


@pytest.mark.parametrize(("kind", "params"), PUBLISHED)
@long_texts
def test_a_hundred_thousand_characters_are_judged_at_once_as_published(
    kind, params, names
):
    seconds = {}
    for name in names:
        start = time.process_time()
        judged(kind, Sample("p", LONG[name], "42"), mode="as_published", **params)
        seconds[name] = time.process_time() - start

    assert {name: each for name, each in seconds.items() if each >= AT_ONCE} == {}


@given(columns=st.fixed_dictionaries({"numbers": JSON, "target": JSON}))
def test_any_columns_are_answered(columns):
    judged("countdown", Sample("p", "<answer>1+2</answer>", None, columns))


@long_texts
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_a_hundred_thousand_characters_are_judged_at_once(kind, names):
    example = RULES[kind].example_pass.sample
    seconds = {}
    for name in names:
        start = time.process_time()
        judged(kind, Sample("p", LONG[name], example.answer, example.columns))
        seconds[name] = time.process_time() - start

    assert {name: each for name, each in seconds.items() if each >= AT_ONCE} == {}


@long_texts
@pytest.mark.parametrize("kind", ["math_verify", "reasoning_gym"])
def test_the_libraries_are_held_to_their_time(kind, names):
    example = RULES[kind].example_pass.sample

    for name in names:
        judged(
            kind,
            Sample("p", LONG[name], example.answer, example.columns),
            source="whole",
            timeout_seconds=1,
        )
