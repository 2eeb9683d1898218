"""A verdict names what decides it."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.probes.verdict import Verdict, give_verdict
from tests.dashboard.probes.factories import measured


def verdict(**changes: Any) -> Verdict:
    found = give_verdict(measured(**changes), group_size=8, max_new_tokens=96)
    assert found is not None
    return found


def test_a_run_with_signal_can_learn() -> None:
    found = verdict()

    assert found.answer == "can"
    assert found.sentence == (
        "This run can learn, because 80% of groups of 8 are expected to have different "
        "rewards."
    )


def test_without_a_group_that_differs_it_cannot() -> None:
    found = verdict(
        **{"signal/share": 0.0, "signal/high": 0.11, "pass@1": 0.0, "pass@8": 0.0}
    )

    assert found.sentence.startswith("This run cannot learn, because in none of 32")
    assert "95 %: at most 11%" in found.sentence
    assert "easier rows" in found.remedies[0]


@pytest.mark.parametrize(
    ("changes", "answer", "said"),
    [
        ({"signal/share": 0.02}, "hardly", "2% of groups"),
        (
            {"pass@1": 0.97, "signal/share": 0.2},
            "hardly",
            "97% of completions are right",
        ),
        ({"pass@1": 1.0, "signal/share": 0.0}, "hardly", "right already"),
        ({"frac_truncated": 0.6}, "hardly", "60% of completions are cut at 96 tokens"),
        ({"frac_truncated": 0.2}, "can", "20% of completions are cut"),
        ({"num_unscored": 200}, "cannot", "no rule can score 78%"),
        (
            {"update_problem": "No memory is left."},
            "cannot",
            "an update failed: No memory",
        ),
        ({"pass@8": 0.0, "pass@1": 0.0}, "can", "partial credit"),
    ],
)
def test_what_speaks_against_it(
    changes: dict[str, Any], answer: str, said: str
) -> None:
    found = verdict(**changes)

    assert found.answer == answer
    assert said in found.sentence


def test_without_numbers_there_is_no_verdict() -> None:
    assert give_verdict({}, group_size=8, max_new_tokens=96) is None
    assert give_verdict({"num_prompts": 0}, group_size=8, max_new_tokens=96) is None
