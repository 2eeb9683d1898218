"""Each warning of the workbench and each figure of a probe, as a page tells it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from tests.dashboard.analysis.probes.factories import (
    finish,
    make_probe,
    make_version,
    measured,
)
from tests.dashboard.rewards.editor import fields
from tests.dashboard.runs.launching import make_dataset, make_recipe

PAGE = "/alpha/rewards/workbench"
BENCH = {"HX-Request": "true", "HX-Target": "bench"}
NUMERIC = ("numeric_answer", {})


@pytest.fixture
def version(team: Team) -> DatasetVersion:
    return make_version(team)


def words(answer: Any) -> str:
    text = answer.text.replace("<wbr>", "")
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_rules_that_always_agree_are_reported(
    alice_client: Client, version: DatasetVersion
) -> None:
    rules = NUMERIC, ("exact_answer", {"params-source": "whole"})
    pasted = {f"completion-{n}": f"{2 * n}\n---\nno" for n in range(3)}

    answer = alice_client.post(f"{PAGE}/scores", fields(*rules, **pasted))

    assert [finding.kind for finding in answer.context["findings"]] == ["agree"]
    assert "exact_answer" in words(answer)


def test_baseline_completions_with_a_reward_are_reported_with_their_rows(
    alice_client: Client, version: DatasetVersion
) -> None:
    version.rows.update(answer="5")
    for rule, expected in (
        (("length", {"params-maximum": "9"}), "An empty"),
        (("contains", {"params-phrases": "+"}), "A copy"),
        (("format_tags", {}), "Empty tags"),
        (NUMERIC, "“5” scores 1"),
    ):
        answer = alice_client.post(f"{PAGE}/rows", fields(rule))

        assert expected in words(answer)
        assert 'data-finding="trivial"' in answer.text
        assert "rows=0" in answer.text


def test_a_call_has_its_scores_total_advantage_time_and_error(
    alice_client: Client, version: DatasetVersion
) -> None:
    rules = NUMERIC, ("length", {"weight": "0.5"}), ("countdown", {})
    pasted = {"completion-2": "4\n---\nno"}

    answer = alice_client.post(PAGE, fields(*rules, **pasted), headers=BENCH)

    shown = words(answer)
    columns = "Completion numeric_answer length countdown Total Advantage Time"
    assert columns in shown
    first = answer.context["bench"].groups[2].tried[0]
    assert first.trial.score.rules == {
        "numeric_answer": 1.0,
        "length": 1.0,
        "countdown": None,
    }
    assert first.total == 1.5
    assert "&quot;numbers&quot;" in shown
    assert re.search(r" 1 1 – 1\.5 0\.707 ", shown)
    assert re.search(r"numeric_answer .*s , length .*s", shown)


def test_a_probe_page_shows_its_metrics(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)
    found = measured(frac_truncated=0.125, num_unscored=7)
    finish(num_done=2, metrics=found)

    page = words(alice_client.get(f"/alpha/probes/{probe.pk}/"))

    for expected in (
        *("pass@1", "0.25", "pass@8", "0.8"),
        *("0.3 95 %: 0.25 to 0.35", "40 38 and 96", "0.125", "without a score 7"),
        *("A step of 2 × 2 2 s", "10,240", "1,000 tokens/s 1 s"),
        *("Scoring 100 ms", "900 ms", "477 MiB", "On cpu (2 threads)"),
    ):
        assert expected in page


def test_a_probe_page_shows_the_verdict(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)
    none = {"signal/share": 0.0, "signal/high": 0.1, "pass@1": 0.0, "pass@8": 0.0}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "can learn", "80% of groups"),
        ({"signal/share": 0.02}, "may learn little", "2% of groups"),
        (none, "cannot learn", "none of 32"),
    ]
    for changes, verdict, reason in cases:
        found = measured(**changes)
        finish(num_done=2, metrics=found)

        page = words(alice_client.get(f"/alpha/probes/{probe.pk}/"))

        assert verdict in page
        assert reason in page


@pytest.mark.parametrize(
    ("share", "group_size", "status"),
    [(0.0, 8, 422), (0.5, 8, 302), (0.0, 16, 302)],  # 16: not what was probed
)
def test_a_launch_that_cannot_learn_needs_confirmation(
    alice_client: Client, team: Team, share: float, group_size: int, status: int
) -> None:
    form = {
        "name": "otter",
        "model": "other",
        "model_other": "org/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
    }
    assert alice_client.post("/alpha/runs/new/probe", form).status_code == 302
    found = measured(**{"signal/share": share, "signal/high": 0.1, "pass@1": 0.0})
    finish(num_done=2, metrics=found)

    form["rollout.group_size"] = group_size

    assert alice_client.post("/alpha/runs/new", form).status_code == status
    confirmed = alice_client.post("/alpha/runs/new", form | {"confirmed": "on"})
    assert confirmed.status_code == 302
