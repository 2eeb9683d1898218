"""Rules beside the rewards that Open R1 and TRL publish.

Open R1's are checked by cases worked out by hand from its definitions; TRL's are
called. Where they count tokens a rule counts characters or words, so the
completions here have a token for each.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.scoring import overlong_fraction

PUBLISHED = {"mode": "as_published"}
ANYWHERE = {"source": "whole"}
HALF_WAY = math.cos(math.pi / 4)  # at a quarter of the length


def message(*completions: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in completions]


def test_open_r1s_reasoning_steps():
    wrong = [
        (completion, expected, found)
        for completion, expected in [
            ("", 0.0),
            ("It is 6.", 0.0),
            ("Step 12: add.", 1 / 3),
            ("step 1: add.", 0.0),
            ("1. add", 1 / 3),
            ("So:\n1. add\n2. add", 0.0),  # numbers count where the text begins alone
            ("- add\n- add\n* add", 2 / 3),  # bullets count behind a line break alone
            ("First, add.\nNext, add.", 2 / 3),
            ("Second, a. Finally, b. Step 3: c. First, d.", 1.0),
            ("First add, Next add", 0.0),
        ]
        if (found := score("reasoning_steps", completion, **PUBLISHED)) != expected
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("completion", "size", "penalty", "expected"),
    [
        ("", 3, -1.0, 0.0),
        ("so so", 3, -1.0, 0.0),
        ("so so so", 3, -1.0, 0.0),  # a single run repeats none
        ("So so SO so", 3, -1.0, -0.5),
        ("a b c d", 2, -1.0, 0.0),
        ("a b a b a b", 2, -0.5, -0.3),  # ab ba ab ba ab: 3 of 5 again
        ("a\n a\ta a", 1, -2.0, -1.5),
    ],
)
def test_open_r1s_repetition_penalty(completion, size, penalty, expected):
    found = score("repetition", completion, ngram_size=size, max_penalty=penalty)

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        (250, 0.75 + HALF_WAY / 4, -0.75 - HALF_WAY / 4),
        (500, 0.75, -0.75),
        (1_000, 0.5, -0.5),
        (1_500, 0.75, -0.75),  # past its maximum it turns back
        (2_000, 1.0, -1.0),
    ],
)
def test_open_r1s_cosine_scaled_reward(length, right, wrong):
    for answer, expected in ((r"$\boxed{7}$", right), (r"$\boxed{8}$", wrong)):
        found = score("cosine_length", answer.ljust(length), "$7$", **PUBLISHED)

        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("completion", "steps", "tags"),
    [
        ("<think>\na\n</think>\n<answer>\nb\n</answer>", 1.0, 1.0),
        ("<think>\na\n</think>\n<answer>\nb</answer>", 0.0, 0.75),
        ("<think>\na</think><answer>b</answer>", 0.0, 0.25),
        ("<think>\n<think>\na\n</think>\n<answer>\nb\n</answer>", 1.0, 0.75),
        ("so <think>\na\n</think>\n<answer>\nb\n</answer>", 0.0, 1.0),
    ],
)
def test_open_r1s_format_and_tags(completion, steps, tags):
    from tests.trainer.rewards.scores import score_completion
    from trainer.presets.preset import as_published, load_published
    from trainer.rewards.rule import Sample

    recipe = as_published(load_published("open-r1"))

    found = score_completion(recipe, Sample("", completion, "$1$"))

    assert found.rules["format"] == steps
    assert found.rules["tag_count"] == tags


WORDS = st.lists(st.sampled_from(["so", "it", "is"]), max_size=25)


@given(words=WORDS, size=st.integers(1, 5), penalty=st.floats(-3, 0))
def test_trls_repetition_penalty(words, size, penalty):
    from trl.rewards import get_repetition_penalty_reward

    ids = [[hash(word) for word in words]]
    (expected,) = get_repetition_penalty_reward(size, penalty)(completion_ids=ids)

    found = score("repetition", " ".join(words), ngram_size=size, max_penalty=penalty)

    assert found == pytest.approx(expected)


@pytest.mark.parametrize("length", [14, 50, 77, 100, 101, 150, 200])
@pytest.mark.parametrize("answer", [r"$\boxed{7}$", r"$\boxed{8}$"])
def test_trls_cosine_scaled_reward(length, answer):
    from trl.rewards import get_cosine_scaled_reward

    text = answer.ljust(length)
    ids = [[0] * len(text)]
    (expected,) = get_cosine_scaled_reward(max_len=100)(message(text), ["$7$"], ids)

    found = score("cosine_length", text, "$7$", max_length=100, answer_params=ANYWHERE)

    assert found == pytest.approx(expected)


@given(
    num_tokens=st.integers(0, 300),
    limit=st.integers(50, 200),
    buffer=st.integers(1, 50),
)
def test_trls_soft_overlong_punishment_is_the_engines(num_tokens, limit, buffer):
    from trl.rewards import get_soft_overlong_punishment

    punish = get_soft_overlong_punishment(limit, buffer)
    (expected,) = punish(completion_ids=[[0] * num_tokens])

    fraction = overlong_fraction(num_tokens, max_new_tokens=limit, buffer=buffer)

    assert -fraction == pytest.approx(expected)


@pytest.mark.parametrize(
    "completion",
    [
        "<think>so</think>4",
        "<think>\nso\n</think>\n4",
        "<think>so</think>",
        "<think></think>4",
        "<think>so 4",
        "so</think>4",
        "4",
        "",
        " <think>so</think>4",
        "<think><think>so</think>4",
        "<think>so</think>4<think>",
    ],
)
def test_trls_think_format_reward(completion):
    from trl.rewards import think_format_reward

    (expected,) = think_format_reward(message(completion))

    found = score("format_tags", completion, answer_tag="", outer_space="refused")

    assert found == expected


def test_a_second_closing_tag_passes_trl_alone():
    from trl.rewards import think_format_reward

    completion = "<think>so</think>4</think>"

    assert think_format_reward(message(completion)) == [1.0]
    assert score("format_tags", completion, answer_tag="") == 0.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}", r"$\frac{1}{2}$"),
        (r"so \boxed{0.5}", r"$\frac{1}{2}$"),
        (r"so \boxed{\frac{1}{3}}", r"$\frac{1}{2}$"),
        (r"$1$, no, \boxed{2}", "$1$"),
        ("so it is 7", "$7$"),  # without LaTeX there is no answer
        ("so it is $7$", "$7$"),
        (r"\boxed{x^2+2x+1}", "$(x+1)^2$"),
        ("", "$7$"),
    ],
)
def test_trls_accuracy_reward(completion, answer):
    from trl.rewards import accuracy_reward

    (expected,) = accuracy_reward(message(completion), [answer])

    assert score("math_verify", completion, answer, **PUBLISHED) == expected


def test_an_answer_that_cannot_be_read_is_left_out_as_trl_does():
    from trl.rewards import accuracy_reward

    completion, answer = r"\boxed{7}", ""

    assert accuracy_reward(message(completion), [answer]) == [None]
    assert scored("math_verify", completion, answer, **PUBLISHED).total is None
    assert scored("cosine_length", completion, answer, **PUBLISHED).total is None
