"""A judge's score is read as it was asked for, or there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rewards.model_judge.question import Unreadable, asked_form, read_score


def read(reply: str, read_as: str = "last_number", **changes: object) -> float:
    settings = {"field": "score", "low": 1.0, "high": 10.0} | changes
    return read_score(reply, read_as, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("7", 6 / 9),
        ("It is fine.\n\nScore: 7\n", 6 / 9),
        ("**10**", 1.0),
        ("Final score = 5.5.", 0.5),
        ("1/10", 0.0),
        ("5 / 10", 4 / 9),
        ("-3", 0.0),
        ("99", 1.0),
    ],
)
def test_the_last_lines_number_is_cut_and_scaled(reply: str, score: float) -> None:
    assert read(reply) == pytest.approx(score)


@pytest.mark.parametrize(
    "reply",
    [
        "", "good", "7 or 8", "7\nThat is my score.", "7/5", "7/100", "nan", "inf",
        "1e3", "0x7", "seven", "7, 8", "٧", "Score: ", "#7", "7" * 12,
    ],
)  # fmt: skip
def test_a_last_line_that_is_no_number_alone_is_unreadable(reply: str) -> None:
    with pytest.raises(Unreadable):
        read(reply)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 7}', 6 / 9),
        ('{"why": "short", "score": 1.0}', 0.0),
        ('```json\n{"score": 10}\n```', 1.0),
        ('Here it is:\n```\n{"score": 10}\n```', 1.0),
        ('{"score": 1e9}', 1.0),
    ],
)
def test_a_field_of_an_object_is_read(reply: str, score: float) -> None:
    assert read(reply, "json_field") == pytest.approx(score)


@pytest.mark.parametrize(
    "reply",
    [
        "7", "[7]", '{"score": "7"}', '{"score": true}', '{"score": null}',
        '{"score": NaN}', '{"score": Infinity}', '{"score": [7]}', '{"Score": 7}',
        '{"score": 7} {"score": 10}', '{"score": 1, "score": 10}', 'ok {"score": 7}',
        '{"score": 7', "{" * 100_000, '{"score": 1' + "0" * 400 + "}",
        '{"score": 1' + "0" * 5_000 + "}", "```",
    ],
)  # fmt: skip
def test_what_is_no_object_with_a_number_is_unreadable(reply: str) -> None:
    with pytest.raises(Unreadable):
        read(reply, "json_field")


@pytest.mark.parametrize(
    ("reply", "score"),
    [("yes", 1.0), ("It is.\nYes.", 1.0), ("**No**", 0.0), ("NO\n", 0.0)],
)
def test_yes_is_one_and_no_is_nothing(reply: str, score: float) -> None:
    assert read(reply, "yes_no") == score


@pytest.mark.parametrize("reply", ["", "maybe", "yes and no", "yes\nor so", "y", "1"])
def test_neither_yes_nor_no_is_unreadable(reply: str) -> None:
    with pytest.raises(Unreadable, match="yes nor no"):
        read(reply, "yes_no")


@given(st.text(max_size=80), st.sampled_from(["last_number", "json_field", "yes_no"]))
def test_any_reply_gives_a_score_from_0_to_1_or_none(reply: str, read_as: str) -> None:
    try:
        score = read(reply, read_as, low=-1.0, high=0.5)
    except Unreadable:
        return
    assert 0 <= score <= 1


@given(st.floats(-1e6, 1e6), st.floats(-100, 100), st.floats(0.1, 100))
def test_the_range_is_scaled_and_nothing_goes_beyond(
    score: float, low: float, width: float
) -> None:
    high = low + width

    found = read(f'{{"score": {score!r}}}', "json_field", low=low, high=high)

    assert found == pytest.approx(min(max((score - low) / width, 0), 1), abs=1e-6)


def test_the_judge_is_told_the_form() -> None:
    assert "from 1 to 10" in asked_form("last_number", field="f", low=1, high=10)
    assert '"a \\"b"' in asked_form("json_field", field='a "b', low=0, high=0.5)
    assert "yes or no" in asked_form("yes_no", field="f", low=0, high=1)
