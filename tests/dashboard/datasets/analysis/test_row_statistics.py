"""Row statistics in one pass, compared with slow and simple ones."""

import random
from collections import Counter

import numpy as np
import pytest

from dashboard.datasets.analysis.statistics import (
    RowStatistics,
    answer_type,
    describe,
    find_groups,
    signature,
    similarity,
)
from dashboard.datasets.row import Row

STORY = (
    "A train leaves the station at five and goes at sixty miles an hour towards the "
    "city in the east, while another comes the other way at forty; when do they meet, "
    "and how far from the city are they then, if none of them stops on its way there?"
)


def gather(rows: list[Row]) -> dict:
    gatherer = RowStatistics(len(rows))
    for row in rows:
        gatherer.add(row)
    return gatherer.result()


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (None, "none"),
        ("", "empty"),
        (" \n", "empty"),
        (" -1,024 ", "integer"),
        ("1,02", "text"),
        ("3.50", "decimal"),
        ("1e-5", "decimal"),
        ("3 / 4", "fraction"),
        ("12%", "percentage"),
        ("(C)", "letter"),
        ("False", "yes or no"),
        ("so \\boxed{3}", "boxed"),
        ("\\frac{1}{2}", "LaTeX"),
        ("$x$", "LaTeX"),
        ("[3, 5]", "JSON"),
        ("{3, 5}", "text"),
        ("[" * 90_000 + "]" * 10, "text"),
        ("a cat", "text"),
        ("a\ncat", "text of several lines"),
        (["4", "four"], "several answers"),
    ],
)
def test_answer_types_are_recognised(answer, wanted):
    assert answer_type(answer) == wanted


def test_duplicates_match_a_comparison_of_all_pairs():
    draw = random.Random(3)
    rows = [
        Row(
            prompt=draw.choice(["A b", "a  B", "a b?", "ａ b", "c"]),
            answer=draw.choice(["1", "2", None]),
        )
        for _ in range(60)
    ]

    found = gather(rows)

    def more(keys: list) -> int:
        return sum(count - 1 for count in Counter(keys).values())

    pairs = [(row.prompt, row.answer) for row in rows]
    words = [
        "a b" if row.prompt in ("A b", "a  B", "ａ b") else row.prompt for row in rows
    ]
    counts = [found[kind]["num_more"] for kind in ("same_row", "same_prompt")]
    assert counts[0] == more(pairs)
    assert sum(counts) == more([row.prompt for row in rows])
    assert sum(counts) + found["same_words"]["num_more"] == more(words)
    groups = found["same_row"]
    assert groups["sizes"] == sorted(groups["sizes"], reverse=True)
    for positions in groups["shown"]:
        assert len({pairs[position] for position in positions}) == 1
        assert positions[0] == pairs.index(pairs[positions[0]])


def test_a_pair_is_counted_in_the_strictest_category():
    rows = [
        Row(prompt="2+2?", answer="4"),
        Row(prompt="2+2?", answer="4"),
        Row(prompt="2+2?", answer="5"),
        Row(prompt=" 2+2? ", answer="4"),
        Row(prompt="2+2?", answer="5"),
    ]

    found = gather(rows)

    assert found["same_row"]["shown"] == [[0, 1], [2, 4]]
    assert found["same_prompt"]["shown"] == [[0, 2]]
    assert found["same_words"]["shown"] == [[0, 3]]


def test_a_chat_differs_from_its_text():
    messages = [{"role": "user", "content": "2+2?"}]

    found = gather([Row(prompt=messages), Row(prompt="2+2?"), Row(prompt=messages)])

    assert found["same_row"]["shown"] == [[0, 2]]
    assert found["same_words"]["shown"] == [[0, 1]]
    assert found["prompt_chars"]["max"] == 4


def test_signatures_agree_as_often_as_the_sets_do():
    draw = random.Random(1)
    words = [f"w{i}" for i in range(400)]
    for kept in (300, 360, 390):
        other = words[:kept] + [f"x{draw.randrange(10**9)}" for _ in range(400 - kept)]
        one, two = signature(" ".join(words)), signature(" ".join(other))
        assert one is not None
        assert two is not None
        shared = kept - 2
        jaccard = shared / (2 * 398 - shared)

        assert similarity(one, two[None])[0] == pytest.approx(jaccard, abs=0.17)


def test_texts_that_differ_in_a_word_are_near_and_others_are_not():
    texts = [STORY, "Who was it? " * 9, STORY.replace("sixty", "ninety"), STORY[:90]]
    signatures = np.stack([signature(text) for text in texts])

    assert find_groups(signatures) == [[0, 2]]


def test_no_near_pair_of_many_is_missed():
    draw = random.Random(2)
    texts = []
    for i in range(100):
        text = " ".join(f"w{draw.randrange(10**9)}" for _ in range(120))
        texts += [text, f"{text} {i}"]
    signatures = np.stack([signature(text) for text in texts])

    assert find_groups(signatures) == [[i, i + 1] for i in range(0, 200, 2)]


def test_near_duplicates_exclude_prompts_with_the_same_words():
    rows = [Row(prompt=text) for text in (STORY, STORY.upper(), f"{STORY} Why?", "a b")]

    found = gather(rows)

    assert found["near"]["shown"] == [[0, 2]]
    assert found["near"]["num_looked"] == 4


def test_many_rows_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr("dashboard.datasets.analysis.statistics.MAX_COMPARED", 4)
    rows = [Row(prompt=f"{STORY} {i}") for i in range(9)]

    near = gather(rows)["near"]

    assert near == {
        "num_more": 2,
        "num_groups": 1,
        "shown": [[0, 3, 6]],
        "sizes": [3],
        "num_looked": 3,
        "every": 3,
    }


def test_lengths_are_described_by_hand():
    lengths = describe(np.array([1] * 98 + [3, 700], np.uint32))

    assert lengths == {
        "count": 100,
        "min": 1,
        "p50": 1,
        "p90": 1,
        "p99": 3,
        "max": 700,
        "mean": 8.01,
        "bin_width": 1,
        "bins": [0, 98, 0, 1],
        "num_longer": 1,
    }
    assert describe(np.array([], np.uint32)) is None


def test_the_longest_of_several_answers_is_measured():
    chat = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
    ]
    rows = [Row(prompt=chat, answer=["4", "four"]), Row(prompt="b", answer="5")]

    result = gather(rows)

    assert (result["answer_chars"]["min"], result["answer_chars"]["max"]) == (1, 4)
    assert result["answer_types"] == [("several answers", 1), ("integer", 1)]
    assert result["prompt_chars"]["max"] == len("ab\nf({})")


def test_missing_and_empty_answers_are_counted_separately():
    rows = [Row(prompt="a"), Row(prompt="b", answer=""), Row(prompt="c", answer="7")]

    found = gather(rows)

    assert (found["missing_answers"], found["empty_answers"]) == (1, 1)
    assert found["answer_types"] == [("integer", 1)]
    assert found["answer_chars"]["count"] == 2
