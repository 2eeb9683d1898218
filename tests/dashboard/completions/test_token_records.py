"""Token values packed into one record and read back."""

import random
from typing import Any

import pytest

from dashboard.completions.tokens import COLUMNS, pack_tokens, unpack_tokens
from tests.dashboard.supervision.logs import measured
from trainer.events import MeasuredCompletion


def read(*completions: MeasuredCompletion) -> list[dict[str, Any]]:
    return unpack_tokens(pack_tokens(completions))


def test_values_are_read_as_logged():
    first = measured(" so", "\ufffd", "\0", "<eos>", clipped=[-1, 0, 1, 2])
    second = measured(" so", ids=[7], kl=[3.1416e-9])

    found = read(first, second)

    for position, (reported, each) in enumerate(
        zip((first, second), found, strict=True)
    ):
        assert each["position"] == position
        assert (each["ids"], each["pieces"]) == (reported.ids, reported.pieces)
        for name in COLUMNS:
            assert each[name] == getattr(reported, name), name
    assert [each["special"] for each in found] == [[0, 0, 0, 1], [0]]


def test_the_same_id_may_stand_for_two_texts():
    (found,) = read(measured("a", "b", ids=[5, 5]))

    assert (found["ids"], found["pieces"]) == ([5, 5], ["a", "b"])


def test_missing_values_are_null():
    some = measured("a", "b", ratio=[None, 1.5], clipped=[None, 0], kl=None)
    none = measured("c", ratio=None, clipped=None, kl=None)

    found = read(some, none)

    assert [each["kl"] for each in found] == [None, None]
    assert [each["ratio"] for each in found] == [[None, 1.5], None]
    assert [each["clipped"] for each in found] == [[None, 0], None]


def test_a_completion_may_have_no_token():
    found = read(measured(), measured("a"))

    assert found[0]["ids"] == found[0]["pieces"] == found[0]["logprob"] == []
    assert found[0]["kl"] is None
    assert found[1]["ids"] == [100]
    assert read() == []


@pytest.mark.parametrize("value", [3e38, -1e-30, 1e-45, 0.0, 65504.0])
def test_any_size_of_a_number_is_kept(value):
    (found,) = read(measured("a", kl=[value]))

    assert found["kl"] == [pytest.approx(value, rel=1e-4, abs=1e-45)]


def test_a_number_beyond_float32_is_null():
    (found,) = read(measured("a", "b", kl=[1e300, 1.0]))

    assert found["kl"] == [None, 1.0]


def test_every_number_of_five_digits_survives():
    chance = random.Random(0)
    numbers = [
        float(f"{chance.uniform(-10, 10) * 10 ** chance.randint(-20, 20):.5g}")
        for _ in range(5_000)
    ]

    (found,) = read(measured(*["x"] * 5_000, kl=numbers))

    assert found["kl"] == numbers


def test_a_group_of_8_completions_of_500_tokens_takes_less_than_100_kb():
    chance = random.Random(0)

    def noise() -> list[float | None]:
        return [float(f"{chance.gauss(0, 1):.5g}") for _ in range(500)]

    names = ("logprob", "sampling_logprob", "entropy", "kl", "ratio", "coefficient")
    completions = [
        measured(
            *[f"word{int(chance.paretovariate(0.7)) % 50_000}" for _ in range(500)],
            **{name: noise() for name in names},
        )
        for _ in range(8)
    ]

    assert 50_000 < len(pack_tokens(completions)) < 120_000
