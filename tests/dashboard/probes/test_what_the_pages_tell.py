"""Each warning of the workbench and each figure of a probe, as a page tells it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.probes.models import Probe
from tests.dashboard.probes.factories import make_probe, make_version, measured
from tests.dashboard.rewards.editor import fields

PAGE = "/alpha/rewards/workbench"
BENCH = {"HX-Request": "true", "HX-Target": "bench"}
NUMERIC = ("numeric_answer", {})


@pytest.fixture
def version(team: Team) -> DatasetVersion:
    return make_version(team)


def words(answer: Any) -> str:
    text = answer.text.replace("<wbr>", "")
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_rules_that_always_agree_are_told(
    alice_client: Client, version: DatasetVersion
) -> None:
    rules = NUMERIC, ("exact_answer", {"params-source": "whole"})
    pasted = {f"completion-{n}": f"{2 * n}\n---\nno" for n in range(3)}

    answer = alice_client.post(f"{PAGE}/scores", fields(*rules, **pasted))

    assert [finding.kind for finding in answer.context["findings"]] == ["agree"]
    said = "Rules numeric_answer and exact_answer give the same score to each of 6"
    assert said in words(answer)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (("length", {"params-maximum": "9"}), "An empty completion is given 1"),
        (("contains", {"params-phrases": "+"}), "The prompt, said again is given 1"),
        (("format_tags", {}), "Only tags, with nothing in them is given 1"),
        (NUMERIC, "The dataset's most frequent answer, “5” is given 1"),
    ],
)
def test_what_is_paid_for_nothing_is_told_with_its_rows(
    alice_client: Client,
    version: DatasetVersion,
    rule: tuple[str, dict[str, str]],
    said: str,
) -> None:
    version.rows.update(answer="5")

    answer = alice_client.post(f"{PAGE}/rows", fields(rule))

    assert said in words(answer).replace("&#x27;", "'")
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
    assert re.search(r"countdown The row .*no column &quot;numbers&quot;", shown)
    assert re.search(r" 1 1 – 1\.5 0\.707 ", shown)
    assert re.search(
        r"Mean time of a call: numeric_answer .*(ms|s) , length .*(ms|s)", shown
    )


FIGURES = {
    "pass@1 one completion is given the highest reward 0.25": {},
    "pass@8 at least one of 8 is (unbiased estimator) 0.8": {},
    "Groups with signal, of 2 rewards in the group differ": {},
    "Mean reward 0.3 95 %: 0.25 to 0.35": {},
    "Completion tokens mean; median and longest 40 38 and 96": {},
    "Cut at 12 tokens 0.125": {"frac_truncated": 0.125},
    "Without a score 7": {"num_unscored": 7},
    "A step of 2 × 2 2 s": {},
    "Tokens it samples 10,240": {},
    "Sampling at the mean length and 1,000 tokens a second 1 s": {},
    "Scoring 100 ms": {},
    "Log-probs and update one was done and thrown away 900 ms": {},
    "Memory the probe took 500 MB": {},
    "On cpu (2 threads)": {},
}


@pytest.mark.parametrize("said", FIGURES)
def test_a_probe_tells_its_figures(
    alice_client: Client, team: Team, version: DatasetVersion, said: str
) -> None:
    probe = make_probe(team, version)
    found = measured(**FIGURES[said])
    Probe.objects.update(state="finished", num_done=2, metrics=found)

    assert said in words(alice_client.get(f"/alpha/probes/{probe.pk}/"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "This run can learn, because 80% of groups of 2"),
        (
            {"signal/share": 0.02},
            "This run can hardly learn, because 2% of groups of 2",
        ),
        (
            {"signal/share": 0.0, "signal/high": 0.1, "pass@1": 0.0, "pass@8": 0.0},
            "This run cannot learn, because in none of 32 groups",
        ),
    ],
)
def test_a_probe_says_whether_the_run_can_learn(
    alice_client: Client,
    team: Team,
    version: DatasetVersion,
    changes: dict[str, Any],
    said: str,
) -> None:
    probe = make_probe(team, version)
    Probe.objects.update(state="finished", num_done=2, metrics=measured(**changes))

    assert said in words(alice_client.get(f"/alpha/probes/{probe.pk}/"))
