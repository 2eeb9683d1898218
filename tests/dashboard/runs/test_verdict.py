"""A verdict names what decides it."""

from typing import Any

from dashboard.runs.launch.verdict import Verdict, give_verdict
from tests.dashboard.analysis.probes.factories import measured


def verdict(**changes: Any) -> Verdict:
    found = give_verdict(measured(**changes), group_size=8, max_new_tokens=96)
    assert found is not None
    return found


def test_a_run_with_signal_can_learn():
    found = verdict()

    assert found.answer == "can"
    assert "80% of groups" in found.sentence


def test_without_mixed_groups_a_run_cannot_learn():
    found = verdict(
        **{"signal/share": 0.0, "signal/high": 0.11, "pass@1": 0.0, "pass@8": 0.0}
    )

    assert found.answer == "cannot"
    assert "none of 32" in found.sentence
    assert "11%" in found.sentence
    assert found.remedies


def test_reasons_lower_the_verdict():
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"signal/share": 0.02}, "hardly", "2% of groups"),
        ({"pass@1": 0.97, "signal/share": 0.2}, "hardly", "97%"),
        ({"pass@1": 1.0, "signal/share": 0.0}, "hardly", "already correct"),
        ({"frac_truncated": 0.6}, "hardly", "60%"),
        ({"frac_truncated": 0.2}, "can", "20%"),
        ({"num_unscored": 200}, "cannot", "78%"),
        ({"update_problem": "No memory is left."}, "cannot", "No memory"),
        ({"pass@8": 0.0, "pass@1": 0.0}, "can", "partial credit"),
    ]
    for changes, answer, reason in cases:
        found = verdict(**changes)

        assert (found.answer, reason in found.sentence) == (answer, True), changes


def test_without_metrics_no_verdict_is_given():
    assert give_verdict({}, group_size=8, max_new_tokens=96) is None
    assert give_verdict({"num_prompts": 0}, group_size=8, max_new_tokens=96) is None
